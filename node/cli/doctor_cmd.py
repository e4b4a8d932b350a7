"""`p2ptrain doctor`: what is wrong with this machine and network for a node, and the fix."""

import json as jsonlib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from node.cli import options
from node.cli.membership_options import passphrase_in, run_dir_of, settings_in
from node.cli.telling import Telling
from node.system.errors import EXIT_FAILED, UsageError
from node.system.light_roles import WITHOUT_MODEL

if TYPE_CHECKING:
    from node.config.toml_source import Raw
    from node.doctor.finding import Finding, Measuring, Subject
    from node.swarm.accept_invite import Membership

MOST = 1e9
"""Watts, or a price: more than any machine takes and anybody pays, and small enough to be multiplied."""
LONGEST_ROUND_S = 366 * 86_400.0

_MARKS = {"ok": ("ok", "green"), "unknown": ("?", "cyan"), "warning": ("look", "yellow"), "problem": ("wrong", "red")}


def doctor(
    config: options.Files = None,
    set_: options.Sets = None,
    peer: options.Peers = None,
    task: options.TaskName = None,
    data: options.Data = None,
    model: options.Model = None,
    lora: options.Lora = None,
    run_dir: options.RunDir = None,
    listen: Annotated[
        list[str] | None, typer.Option(metavar="MULTIADDR", help="Where the node would listen. Can be repeated.")
    ] = None,
    name: options.NodeName = None,
    role: options.RoleName = None,
    via: options.Via = None,
    spool: options.Spool = None,
    memory: options.Memory = None,
    gpu_memory: options.GpuMemory = None,
    disk: options.Disk = None,
    cpu: options.Cpu = None,
    allow: options.Allow = None,
    invite: options.Invite = None,
    swarm: options.SwarmDir = None,
    passphrase_file: options.PassphraseFile = None,
    measure: Annotated[
        str, typer.Option(metavar="TIME", help="Train for so long to measure what this machine contributes; 0: do not.")
    ] = "5s",
    neighbours: Annotated[
        int | None, typer.Option(metavar="N", help="Whom it would send to. (default: network.degree)")
    ] = None,
    round_time: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Of the swarm's rounds: 30s. (default: those of this machine's own pace)"),
    ] = None,
    watts: Annotated[
        float | None,
        typer.Option(metavar="N", help="What it takes while it trains. (default: its own counters, if any)"),
    ] = None,
    price_kwh: Annotated[float | None, typer.Option(metavar="N", help="Of a kWh, in your currency.")] = None,
    json: options.Json = False,
) -> int:
    """Say what keeps this machine and network from running a node, what to do, and what it would contribute and take a
    day. With the flags of `p2ptrain node`.

    Exit code 0: a node can run; 1: it cannot; 2: the flags or the configuration are wrong.
    """
    from node.config.sections import merged
    from node.doctor.examine import examine

    given = options.flags(
        task=task,
        data=data,
        model=model,
        lora=lora,
        peers=peer or (),
        listen=listen or (),
        via=via,
        spool=spool,
        memory=memory,
        gpu_memory=gpu_memory,
        disk=disk,
        cpu=cpu,
        allow=allow or (),
        name=name,
        role=role,
    )
    asked = _measuring(measure, neighbours, round_time, watts, price_kwh)
    is_new = run_dir is not None and not run_dir.exists()
    given_dir, run_dir = run_dir, run_dir_of(run_dir, swarm, invite)
    raw, member = settings_in(run_dir, merged(config or (), set_ or (), given), invite)
    subject = _subject(raw, run_dir)
    if member is not None:
        subject = _as_member(subject, member, passphrase_file)
    if asked is not None and subject.learning is not None and subject.node.role == "trainer":
        _check_neighbours(asked, subject)
        subject = replace(subject, measuring=asked)
    console = Console()
    with Telling("looking round, for 20 seconds at most: this machine", quiet=json) as tell:
        found = examine(subject, tell)
    findings = found.findings
    fit = not any(it.level == "problem" for it in findings)
    if json:
        contribution = None if found.contribution is None else found.contribution.as_dict()
        page = {"fit": fit, "findings": [it.as_dict() for it in findings], "contribution": contribution}
        typer.echo(jsonlib.dumps(page, allow_nan=False))
    else:
        if is_new:  # or its name is mistyped
            typer.echo(f"note: there is no {given_dir} yet: what was checked is a new node in it", err=True)
        _show(console, findings, fit=fit)
    return 0 if fit else EXIT_FAILED


def _measuring(
    measure: str, neighbours: int | None, round_time: str | None, watts: float | None, price_kwh: float | None
) -> "Measuring | None":
    """What the options say; None: nothing is measured. UsageError."""
    from node.doctor.finding import Measuring

    for option, value, example in (("--watts", watts, "65"), ("--price-kwh", price_kwh, "0.3")):
        if value is not None and not 0 < value <= MOST:
            raise UsageError(
                f"{option}: a number above 0, not {value:g}", f"{MOST:g} at most, such as {option} {example}"
            )
    if neighbours is not None and neighbours < 1:
        raise UsageError(f"--neighbours: 1 or more, not {neighbours}", "such as --neighbours 4")
    for_s = _seconds("--measure", measure)
    round_s = None if round_time is None else _seconds("--round-time", round_time)
    if round_s == 0:
        raise UsageError("--round-time: a round takes some time", "such as --round-time 30s")
    if round_s is not None and round_s > LONGEST_ROUND_S:
        raise UsageError("--round-time: no round takes longer than a year", "such as --round-time 30s")
    if not for_s:
        return None
    return Measuring(for_s=for_s, neighbours=neighbours, round_s=round_s, watts=watts, price_kwh=price_kwh)


def _seconds(option: str, given: str) -> float:
    from node.planning.quantities import seconds

    try:
        return seconds(given)
    except ValueError as error:
        raise UsageError(f"{option}: {error}") from None


def _check_neighbours(asked: "Measuring", subject: "Subject") -> None:
    if asked.neighbours is not None and asked.neighbours > subject.network.degree:
        raise UsageError(
            f"--neighbours {asked.neighbours}: this node would have {subject.network.degree} at most",
            f"--set network.degree={asked.neighbours} to have as many",
        )


def _as_member(subject: "Subject", member: "Membership", passphrase_file: Path | None) -> "Subject":
    """With what the swarm's members want to see of it."""
    from gossip.membership.private_swarm import of_swarm
    from node.swarm import credentials
    from node.swarm.views import is_running

    if member.invitation is not None:
        return replace(
            subject, unasked="they speak with members only, and the invite is not redeemed before a node runs"
        )
    if is_running(member.node_dir):
        return replace(subject, unasked=f"the node in {member.node_dir} runs, and its peers know it by its key")
    held = credentials.load(member.node_dir, passphrase_in(member.node_dir, passphrase_file))
    assert held.private is not None
    network = replace(subject.network, swarm_id=of_swarm(subject.network, held.private).swarm_id)
    return replace(subject, network=network, credentials=held)


def _subject(raw: "Raw", run_dir: Path) -> "Subject":
    from node.config import schema
    from node.config.sections import role_in
    from node.doctor.finding import Subject
    from node.roles import bootstrap
    from node.roles.assembly import check_runnable

    if role_in(raw) in WITHOUT_MODEL:
        settings = bootstrap.from_raw(raw)
        return Subject(network=settings.network, node=settings.node, learning=None, run_dir=run_dir)
    learning = schema.from_raw(raw)
    check_runnable(learning)
    return Subject(network=learning.network, node=learning.node, learning=learning, run_dir=run_dir)


def _show(console: Console, findings: "list[Finding]", *, fit: bool) -> None:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    for it in findings:
        mark, style = _MARKS[it.level]
        words = escape(it.seen) + (f"\n[dim]->[/dim] {escape(it.fix)}" if it.fix else "")
        table.add_row(f"[{style}]{mark}[/{style}]", it.check, words)
    console.print(table)
    wrong, look = (sum(it.level == level for it in findings) for level in ("problem", "warning"))
    if fit:
        console.print("[green]A node can run here.[/green]" + (f" {look} to look at above." if look else ""))
    else:
        console.print(f"[red]A node cannot run here as it is told to:[/red] {wrong} to mend above.")
