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
from node.system.errors import EXIT_FAILED
from node.system.light_roles import WITHOUT_MODEL

if TYPE_CHECKING:
    from node.config.toml_source import Raw
    from node.doctor.finding import Finding, Subject
    from node.swarm.accept_invite import Membership

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
    allow: options.Allow = None,
    invite: options.Invite = None,
    swarm: options.SwarmDir = None,
    passphrase_file: options.PassphraseFile = None,
    json: options.Json = False,
) -> int:
    """Say what keeps this machine and network from running a node, and what to do. With the flags of `p2ptrain node`.

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
        allow=allow or (),
        name=name,
        role=role,
    )
    run_dir = run_dir_of(run_dir, swarm, invite)
    raw, member = settings_in(run_dir, merged(config or (), set_ or (), given), invite)
    subject = _subject(raw, run_dir)
    if member is not None:
        subject = _as_member(subject, member, passphrase_file)
    console = Console()
    with Telling("looking round, for 20 seconds at most: this machine", quiet=json) as tell:
        findings = examine(subject, tell)
    fit = not any(it.level == "problem" for it in findings)
    if json:
        typer.echo(jsonlib.dumps({"fit": fit, "findings": [it.as_dict() for it in findings]}))
    else:
        _show(console, findings, fit=fit)
    return 0 if fit else EXIT_FAILED


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
