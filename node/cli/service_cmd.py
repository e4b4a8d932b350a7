"""`p2ptrain service`: a node that runs by itself, as a service of this user."""

import functools
import json as jsonlib
import os
import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.console import Console

from node.cli import node_cmd, options
from node.cli.membership_options import passphrase_in
from node.cli.status_cmd import replayed
from node.system import run_dir as folders
from node.system.errors import P2PTrainError, UsageError
from node.system.run_dir import EVENTS

if TYPE_CHECKING:
    from node.config.schema import TaskSection
    from node.events.progress import NodeProgress
    from node.services.service_manager import ServiceManager, ServiceState
    from node.services.service_record import ServiceRecord

app = typer.Typer(
    help="Run a node as a service of this user: systemd on Linux (in Windows by WSL), launchd on macOS.",
    no_args_is_help=True,
)

Name = Annotated[str, typer.Option(help="The service's name, where there are several.")]
AnyName = Annotated[str | None, typer.Option("--name", help="One service. (default: all of this user)")]


@app.command()
def install(
    words: Annotated[
        list[str], typer.Argument(metavar="-- OPTIONS", help="The options of `p2ptrain node`, after two dashes.")
    ],
    name: Name = "node",
    replace: Annotated[bool, typer.Option("--replace", help="Write a service of this name anew.")] = False,
) -> None:
    """Have a node start by itself, now and from now on. It goes on when you log out, and after a crash.

    p2ptrain service install -- --run-dir runs/home --peer /ip4/...

    The options are checked as `p2ptrain node` would. An invite is redeemed now, and not written down.
    """
    from node.services import installing
    from node.services.service_manager import manager_here, refuse_sudo
    from node.services.service_record import ServiceRecord, carried, check_name

    manager = manager_here()
    refuse_sudo()
    check_name(name)
    asked = _asked(words)
    if asked.run_dir is None and asked.swarm is None:
        raise UsageError("a service goes on where it was stopped, so it needs a folder", "add --run-dir FOLDER")
    start = node_cmd.checked(asked)
    _check_data(getattr(start.settings, "task", None))
    kept = _without_invite(words)
    _refuse_secrets(kept)
    node_dir = folders.node_dir(start.run_dir, start.settings.node.name).absolute()
    record = ServiceRecord(
        name=name,
        argv=(_interpreter(), "-P", "-m", manager.module, "node", *kept),
        folder=Path.cwd(),
        node_dir=node_dir,
        environment=carried(dict(os.environ)),
    )
    manager.text(record)  # what cannot stand in it is said before anything is written
    installing.check_free(manager, record, replace=replace)
    _check_key(node_dir, asked.passphrase_file)
    _make_member(start, asked)
    done = installing.install(manager, record)
    typer.echo(f"installed {manager.file_of(name)}")
    if done.not_started:
        typer.echo(f"not started: {done.not_started}. Start it with: {manager.start_line(name)}")
        return
    typer.echo(f"started; see p2ptrain service status{'' if name == 'node' else f' --name {name}'}")
    if done.linger:
        typer.echo(done.linger)


@app.command()
def status(name: AnyName = None, json: options.Json = False) -> None:
    """Show whether the services run, and how far their nodes are."""
    from node.services.service_manager import manager_here

    manager = manager_here()
    records = [manager.load(each) for each in _names(manager, name)]
    now = time.time()
    told = [(record, manager.state(record.name), _progress(record.node_dir, now)) for record in records]
    answering = [None if node is None else _answers(record.node_dir, node) for record, _, node in told]
    if json:
        views = [_view(manager, *each, answer) for each, answer in zip(told, answering, strict=True)]
        typer.echo(jsonlib.dumps(views, default=str))
        return
    console = Console()
    for (record, state, node), answer in zip(told, answering, strict=True):
        _show(console, manager, record, state, node, answer)


@app.command()
def remove(name: Name = "node") -> None:
    """Stop a service and remove it. Its run folder stays as it is."""
    from node.services import installing
    from node.services.service_manager import manager_here, refuse_sudo
    from node.services.service_record import check_name

    manager = manager_here()
    refuse_sudo()
    record = installing.remove(manager, check_name(name))
    typer.echo(f"removed {manager.file_of(name)}; what it wrote stays in {record.node_dir}")


@app.command()
def upgrade(
    to: Annotated[
        str, typer.Option("--to", metavar="VERSION|PATH", help="A version that pip finds, a wheel, an sdist, a folder.")
    ],
    wire: Annotated[
        int | None, typer.Option(help="The wire version that the swarm speaks by now. (default: the installed one's)")
    ] = None,
) -> None:
    """Install another p2ptrain here by pip, and start the services again: all that use this environment.

    One that speaks another wire version than the run is refused. Where a node does not come up with it, what was there
    before comes back.
    """
    from node.services.service_manager import manager_here, refuse_sudo
    from node.services.upgrade import upgrade as upgraded

    manager = manager_here()
    refuse_sudo()
    done = upgraded(manager, to, wire=wire, tell=lambda line: typer.echo(line, err=True))
    typer.echo(f"p2ptrain {done.before} -> {done.after}; the version before is kept in {done.kept}")
    if done.started:
        typer.echo(f"started again: {', '.join(done.started)}")
    else:
        typer.echo("no service ran, so none was started")


def _asked(words: list[str]) -> node_cmd.NodeOptions:
    """What these options of `p2ptrain node` say. Raises as the command line does for a wrong one."""
    found: dict[str, Any] = {}

    @functools.wraps(node_cmd.node)
    def keep(**given: Any) -> None:
        found.update(given)

    program = typer.Typer(add_completion=False)
    program.command("node", context_settings={"help_option_names": []})(keep)
    typer.main.get_command(program).main(args=list(words), prog_name="p2ptrain node", standalone_mode=False)
    return node_cmd.asked_of(**found)


def _check_data(task: "TaskSection | None") -> None:
    """Raise UsageError for data that are not there: the service would start, fail and start again. A user's own task
    may mean something else by the word."""
    if task is None or task.name not in _OF_FILES:  # a role without a model
        return
    from p2ptrain.tasks.hf.hub import hub_name

    data = task.options.get("data")
    if isinstance(data, str) and not Path(data).expanduser().exists() and hub_name(data) is None:
        raise UsageError(f"there are no data at {data}", "give the file or folder that is to be trained on")


_OF_FILES: Final = frozenset({"byte-lm", "hf-lm", "hf-vision"})
"""Tasks whose data are files, or a name of the hub."""


def _without_invite(words: list[str]) -> list[str]:
    kept, skip = [], False
    for word in words:
        if not skip and word != "--invite" and not word.startswith("--invite="):
            kept.append(word)
        skip = word == "--invite" and not skip
    return kept


def _refuse_secrets(words: list[str]) -> None:
    """A service's file is no place for them, nor is a command line. What the error shows of them is hidden where it is
    printed."""
    from node.events.redaction import Redactor

    redact = Redactor().text
    for word in words:
        if redact(word) != word:
            raise UsageError(f"{word} would stand in the service's file", "give the file that holds it")


def _interpreter() -> str:
    if not sys.executable or not Path(sys.executable).is_absolute():
        raise UsageError("this Python does not say where it is", "call p2ptrain by its environment's python")
    return sys.executable


def _check_key(node_dir: Path, passphrase_file: Path | None) -> None:
    """A service has no terminal to ask for a passphrase at."""
    from gossip.core.identity import Identity

    key = node_dir / folders.IDENTITY
    if passphrase_file is None and key.exists() and Identity.is_sealed(key):
        raise UsageError(f"the key {key} has a passphrase, and a service can ask nobody", "add --passphrase-file FILE")


def _make_member(start: node_cmd.CheckedNode, asked: node_cmd.NodeOptions) -> None:
    """Redeem the invite now: a start after its end would be refused with it."""
    if start.member is None or start.member.invitation is None:
        return
    folder = folders.make_node_dir(start.run_dir, start.settings.node.name)
    with folders.locked(folder):
        start.member.settle(passphrase_in(folder, asked.passphrase_file))


def _names(manager: "ServiceManager", name: str | None) -> list[str]:
    from node.services.service_record import check_name

    if name is not None:
        return [check_name(name)]
    names = manager.names()
    if not names:
        raise UsageError("no service is installed", "p2ptrain service install -- --run-dir FOLDER ...")
    return names


def _progress(node_dir: Path, now: float) -> "NodeProgress | None":
    return replayed(node_dir, now) if (node_dir / EVENTS).is_file() else None


def _answers(node_dir: Path, node: "NodeProgress") -> bool | None:
    """Whether the node's page answers; None where there is none to ask, or not yet."""
    from node.top.remote import fetch, token_of

    if node.over or node.state == "starting" or not node.metrics_url:  # its last process's address may be another's
        return None
    try:
        fetch(node.metrics_url.replace("//0.0.0.0:", "//127.0.0.1:"), token_of(node_dir / folders.CONFIG))
    except P2PTrainError:
        return False
    return True


def _view(
    manager: "ServiceManager",
    record: "ServiceRecord",
    state: "ServiceState",
    node: "NodeProgress | None",
    answers: bool | None,
) -> dict[str, Any]:
    return {
        "name": record.name,
        "file": str(manager.file_of(record.name)),
        "node_dir": str(record.node_dir),
        "command": list(record.argv),
        "service": state.as_dict(),
        "answers": answers,
        "node": None if node is None else node.as_dict(),
    }


def _show(
    console: Console,
    manager: "ServiceManager",
    record: "ServiceRecord",
    state: "ServiceState",
    node: "NodeProgress | None",
    answers: bool | None,
) -> None:
    from node.events.liveness import ago, words
    from node.top.table import nodes_table

    def say(line: str) -> None:
        console.print(line, soft_wrap=True, highlight=False, markup=False)

    say(f"service {record.name}: {_of_service(state)}")
    say(f"  command: {shlex.join(record.argv)}")
    if not record.python.exists():
        line = f"p2ptrain service install --replace --name {record.name} -- ..."
        say(f"  its interpreter {record.python} is gone: install it again by one that is there ({line})")
    if state.state in {"failed", "waiting"}:
        say(f"  what it said: {manager.log_line(record.name)}")
    if state.state == "unknown" or (state.state == "stopped" and not state.at_login):
        say(f"  start it with: {manager.start_line(record.name)}")
    if node is None:
        say(f"  it has not run yet: there is nothing in {record.node_dir}")
        return
    console.print(nodes_table([node], width=console.width))
    now = time.time()
    if its := words(node, now):
        say(f"{node.name}: {its}")
    elif node.last_round_at:
        say(f"{node.name}: last round {ago(now - node.last_round_at)}")
    if answers is not None:
        say(f"{node.name}: its page {node.metrics_url} {'answers' if answers else 'does not answer'}")


def _of_service(state: "ServiceState") -> str:
    told = [state.state + (f" ({state.why})" if state.why else "")]
    if state.pid is not None:
        told.append(f"process {state.pid}")
    if state.restarts:
        told.append(f"restarted {state.restarts} times")
    if state.at_login is not None:
        told.append("starts by itself" if state.at_login else "does not start by itself")
    if state.lingers is not None:
        told.append("goes on after log-out" if state.lingers else "ends at log-out")
    return ", ".join(told)
