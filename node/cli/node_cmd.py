"""`p2ptrain node`: one node in this process."""

import os
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import typer

from node.cli import options
from node.cli.membership_options import awaiting_peers, passphrase_in, run_dir_of, secrets_of, settings_in
from node.cli.telling import on_a_terminal
from node.system import run_dir as folders
from node.system.cgroups import HeldProcess, Limits, own_hierarchies
from node.system.errors import EXIT_INTERRUPTED, UsageError, is_interrupt, translate
from node.system.light_roles import WITHOUT_MODEL
from node.system.next_command import node_command
from node.system.process_use import held_bytes
from node.system.ranks import site_process

if TYPE_CHECKING:
    from node.config.sections import NodeConfig
    from node.config.toml_source import Raw
    from node.events.log import EventLog
    from node.swarm.accept_invite import Membership


def node(
    config: options.Files = None,
    set_: options.Sets = None,
    peer: options.Peers = None,
    rounds: options.Rounds = None,
    inner_steps: options.InnerSteps = None,
    task: options.TaskName = None,
    data: options.Data = None,
    model: options.Model = None,
    lora: options.Lora = None,
    run_dir: options.RunDir = None,
    listen: Annotated[
        list[str] | None,
        typer.Option(metavar="MULTIADDR", help="Where to listen, such as /ip4/0.0.0.0/tcp/4001. Can be repeated."),
    ] = None,
    seed: options.Seed = None,
    name: options.NodeName = None,
    role: options.RoleName = None,
    via: options.Via = None,
    spool: options.Spool = None,
    allow: options.Allow = None,
    invite: options.Invite = None,
    swarm: options.SwarmDir = None,
    passphrase_file: options.PassphraseFile = None,
    export: options.Exports = None,
    when: options.When = None,
    memory: options.Memory = None,
    gpu_memory: options.GpuMemory = None,
    disk: options.Disk = None,
    cpu: options.Cpu = None,
    json: options.Json = False,
    with_parent: Annotated[bool, typer.Option("--with-parent", hidden=True)] = False,
) -> int:
    """Run one node: on its own, or joined to a swarm with --peer. It prints what another machine runs to join it.

    Give --run-dir to be able to go on later: the folder is enough, and goes on from its newest checkpoint with its own
    settings. --rounds gives it more; what makes another model cannot change.

    A private swarm is joined with --invite, once: its folder is a member's from then on, and all training settings are
    the swarm's. --swarm runs its creator's node.

    Where a machine reaches nobody but one other, run --role relay there, and give its address here with --via, or a
    folder that both share with --spool.
    """
    rank = site_process()
    if rank is not None and rank.rank:
        from node.roles.site import follow

        return follow()
    asked = asked_of(**locals())
    with HeldProcess(os.getpid(), outside=held_bytes()) as process:
        start = checked(asked, tried=with_parent, quiet=json, process=process)
        folder = folders.make_node_dir(start.run_dir, start.settings.node.name)
        passphrase = passphrase_in(folder, passphrase_file)
        if with_parent:
            _end_with_parent()
        run = partial(start.run, passphrase=passphrase)
        return _run(start.settings, run, folder, member=start.member, passphrase=passphrase, as_json=json)


@dataclass(frozen=True, kw_only=True)
class NodeOptions:
    """What the options of `p2ptrain node` say."""

    files: list[Path] | None
    sets: list[str] | None
    flags: "Raw"
    run_dir: Path | None
    swarm: Path | None
    invite: str | None
    passphrase_file: Path | None


@dataclass(frozen=True, kw_only=True)
class CheckedNode:
    """A node whose options have been checked. Nothing is written yet."""

    settings: "_Settings"
    run: "_Main"
    run_dir: Path
    member: "Membership | None"


def asked_of(**given: Any) -> NodeOptions:
    """Return what the parameters of `node` say, by their names; those that are about this process alone are passed
    over."""
    flags = options.flags(
        rounds=given["rounds"],
        inner_steps=given["inner_steps"],
        task=given["task"],
        data=given["data"],
        model=given["model"],
        lora=given["lora"],
        seed=given["seed"],
        peers=given["peer"] or (),
        listen=given["listen"] or (),
        via=given["via"],
        spool=given["spool"],
        allow=given["allow"] or (),
        name=given["name"],
        role=given["role"],
        exports=given["export"] or (),
        when=given["when"],
        memory=given["memory"],
        gpu_memory=given["gpu_memory"],
        disk=given["disk"],
        cpu=given["cpu"],
    )
    return NodeOptions(
        files=given["config"],
        sets=given["set_"],
        flags=flags,
        run_dir=given["run_dir"],
        swarm=given["swarm"],
        invite=given["invite"],
        passphrase_file=given["passphrase_file"],
    )


def checked(
    asked: NodeOptions, *, tried: bool = False, quiet: bool = False, process: HeldProcess | None = None
) -> CheckedNode:
    """Return the node that is asked for. Writes nothing. UsageError for what cannot be. `tried`: whether the caller has
    tried the task; `quiet`: shows no progress. `process`: the one that is to run it, which a budget is to hold."""
    from node.config.sections import merged, role_in

    run_dir = run_dir_of(asked.run_dir, asked.swarm, asked.invite)
    raw, member = settings_in(run_dir, merged(asked.files or (), asked.sets or (), asked.flags), asked.invite)
    with on_a_terminal("starting", quiet=quiet):
        light = role_in(raw) in WITHOUT_MODEL
        folder_given = asked.run_dir is not None or asked.swarm is not None
        settings, run = _without_model(raw) if light else _trainer(raw, tried, folder_given, process)
    return CheckedNode(settings=settings, run=run, run_dir=run_dir, member=member)


class _Settings(Protocol):
    """The settings of either role."""

    @property
    def node(self) -> "NodeConfig": ...

    def to_toml(self) -> str: ...


class _Main(Protocol):
    def __call__(
        self, *, node_dir: Path, emit: "EventLog", fits: Callable[[], None], passphrase: bytes | None = None
    ) -> int: ...


def _trainer(raw: "Raw", tried: bool, folder_given: bool, process: HeldProcess | None) -> tuple[_Settings, _Main]:
    from node.config.budget_section import budget_in

    budget = budget_in(raw)
    if budget.is_set and process is not None:  # before torch is loaded, which then counts
        process.enter(Limits(memory=budget.memory, cpu=budget.cpu), own_hierarchies())
    from node.config.schema import from_raw
    from node.roles import trainer
    from node.roles.assembly import check_runnable
    from node.roles.site_check import check_site

    settings = awaiting_peers(from_raw(raw))
    check_runnable(settings)
    if check_site(settings, site_process(), run_dir_given=folder_given):
        from node.roles.site import lead  # seconds of imports, which a node of one process has no use for

        return settings, partial(lead, settings)
    return settings, partial(trainer.main, settings, tried=tried, process=process or trainer.FREE)


def _without_model(raw: "Raw") -> tuple[_Settings, _Main]:
    """Without torch: what a trainer's settings say of learning is not even read."""
    from node.config.budget_section import budget_in
    from node.roles import bootstrap

    process = site_process()
    if process is not None and process.count > 1:
        raise UsageError("a bootstrap node or a relay is one process", "start it without torchrun")
    if budget_in(raw).is_set:
        raise UsageError("a bootstrap node or a relay has no [budget]", "leave it out: it holds no model")
    settings = bootstrap.from_raw(raw)
    return settings, partial(bootstrap.main, settings)


def _run(
    settings: _Settings,
    run: _Main,
    folder: Path,
    *,
    member: "Membership | None",
    passphrase: bytes | None,
    as_json: bool,
) -> int:
    import structlog  # 60 ms that --help need not wait for

    from node.events import library_logs
    from node.events.event_types import Failed
    from node.events.lines import LastingConsole, LineSink, left_out
    from node.events.log import JsonSink, opened
    from node.system import left_threads
    from node.system.aside import Aside

    console = LastingConsole()
    settle = None if member is None else partial(member.settle, passphrase)
    kept = folders.KeptSettings(folder, settings.to_toml())
    printing = Aside(JsonSink(sys.stdout) if as_json else LineSink(console), left_out)
    with opened(folder, settle, (passphrase, *secrets_of(member))) as log, printing:
        if not (folder / folders.CHECKPOINTS).is_dir():
            kept.keep()  # at once: a crash may come before a first checkpoint does
        library_logs.configure(folder / folders.LOG, log.redact, debug="--debug" in sys.argv)
        log.add_sink(printing)
        try:
            code = run(node_dir=folder, emit=log, fits=kept.fit)
        except BaseException as error:
            if not is_interrupt(error):
                known = translate(error)
                structlog.get_logger(library_logs.OURS).error("the node failed", exc_info=error)
                log(Failed(error=known.message, hint=known.hint))
                if isinstance(known, UsageError):
                    kept.refused()
            raise
    if code == EXIT_INTERRUPTED and not as_json and not left_threads.printing_is_stuck():
        console.print(f"\nTo go on: {node_command(folder)}", soft_wrap=True, highlight=False)
    return code


def _end_with_parent() -> None:
    """Stop as on Ctrl-C when the other end of stdin closes: a supervisor that was killed leaves no orphans."""

    def watch() -> None:
        while os.read(0, 4096):
            pass
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()
