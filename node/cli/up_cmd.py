"""`p2ptrain up`: a whole swarm on this machine."""

import json as jsonlib
import os
import shlex
import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from node.cli import options
from node.cli.telling import on_a_terminal
from node.system import interrupts, left_threads, text
from node.system import run_dir as folders
from node.system.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_USAGE, P2PTrainError, RunError, UsageError
from node.system.safe_io import say

if TYPE_CHECKING:
    from node.config.schema import Config
    from node.page.status_server import SwarmServer
    from node.up.plan import Plan
    from node.up.supervisor import Outcome, Supervisor


def up(
    nodes: Annotated[
        int | None, typer.Option("--nodes", "-n", help="Nodes to start, each a process. (default: 4)")
    ] = None,
    rounds: options.Rounds = None,
    inner_steps: options.InnerSteps = None,
    task: options.TaskName = None,
    data: options.Data = None,
    model: options.Model = None,
    lora: options.Lora = None,
    config: options.Files = None,
    set_: options.Sets = None,
    run_dir: options.RunDir = None,
    byzantine: Annotated[
        int | None, typer.Option(metavar="K", help="The last K nodes lie (with --attack). (default: 0)")
    ] = None,
    attack: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="What liars do: sign_flip, alie, nan, label_flip, equivocation, flood, ..."),
    ] = None,
    seed: options.Seed = None,
    export: options.Exports = None,
    json: Annotated[
        bool,
        typer.Option(
            "--json",
            help="JSON lines instead of text, and no page of the swarm: a program needs none. Each node's own has its "
            "address in `started`, and `p2ptrain page RUN` shows the swarm.",
        ),
    ] = False,
    keep: Annotated[
        bool,
        typer.Option("--keep", help="Keep every checkpoint of the run. Without it each node keeps its newest few."),
    ] = False,
) -> int:
    """Train with a whole swarm on this machine, watch it, and see what came of it.

    Ctrl-C stops it within five seconds, with checkpoints written. `p2ptrain up --run-dir` with the same folder goes on
    from there, with the folder's settings; --rounds gives it more.
    """
    from node.cli.membership_options import warn
    from node.cli.tune_cmd import with_found_rate
    from node.config.schema import from_raw
    from node.config.sections import merged
    from node.up.resume import start_in

    given = options.flags(
        rounds=rounds,
        inner_steps=inner_steps,
        task=task,
        data=data,
        model=model,
        lora=lora,
        seed=seed,
        attack=attack,
        exports=export or (),
    )
    folder = run_dir or folders.fresh_run_dir(datetime.now())
    start = start_in(folder, merged(config or (), set_ or (), given), nodes=nodes, byzantine=byzantine)
    settings = from_raw(with_found_rate(start.raw, quiet=json))
    if keep:
        settings = _keep_all(settings)
    warn(start.notes)
    return _up(settings, folder, nodes=start.nodes, byzantine=start.byzantine, json=json)


def _up(config: "Config", folder: Path, *, nodes: int, byzantine: int, json: bool) -> int:
    from node.cli.membership_options import warn
    from node.up.plan import make_plan
    from node.up.resume import check_fits

    plan = make_plan(config, run_dir=folder, nodes=nodes, byzantine=byzantine, cores=_cores())
    with on_a_terminal(f"preparing {config.task.name}", quiet=json):
        doubts = _check_task(plan)
    warn(doubts)
    check_fits(plan)
    _check_room(plan)
    folders.make_dir(folder)
    with folders.locked(folder):
        return _watched(plan, json=json)


def _watched(plan: "Plan", *, json: bool) -> int:
    from node.events.lines import LastingConsole
    from node.up import view
    from node.up.supervisor import Supervisor

    console = LastingConsole()
    if not json:
        _say(console, _opening(plan))
    supervisor = Supervisor(plan, lambda name, event: shown.event(name, event))
    liars = frozenset(node.name for node in plan.nodes if node.byzantine)
    progress = [node.progress for node in supervisor.nodes]
    shown = view.choose(progress, json=json, byzantine=liars, console=console)
    interrupts.raising()  # from here on there is a terminal to put in order
    with shown:
        outcome = _run(supervisor, plan, None if json else console)
    if outcome.interrupted:
        if not json and not left_threads.printing_is_stuck():
            _say(console, f"\nInterrupted. To go on: {_again(plan)}")
        return EXIT_INTERRUPTED
    _require_finished(plan, outcome)
    return _finish(plan, outcome, console, json=json)


def _run(supervisor: "Supervisor", plan: "Plan", console: Console | None) -> "Outcome":
    """Run the nodes, with the page of all of them beside, whose address is told on `console`; None: without a page."""
    import trio

    from node.events.page_address import page_words

    async def run() -> "Outcome":
        async with trio.open_nursery() as nursery:
            server = None if console is None else _server(plan)
            if server is not None and console is not None:
                url = await nursery.start(server.run)
                words = page_words(url, plan.nodes[0].config.node.status_token_file)
                console.print(f"The swarm's page: {words}", highlight=False, soft_wrap=True)
            outcome = await supervisor.run()
            nursery.cancel_scope.cancel()
        return outcome

    return trio.run(run)


def _server(plan: "Plan") -> "SwarmServer | None":
    """As the nodes' own pages are served: where, whether at all, and with which token."""
    from node.page.status_server import Listening, SwarmServer
    from node.page.swarm_feed import SwarmFeed
    from node.system.page_token import load_or_create

    settings = plan.nodes[0].config.node
    if settings.metrics_port < 0:
        return None
    token = "" if settings.status_token_file is None else load_or_create(settings.status_token_file)
    return SwarmServer(SwarmFeed([plan.run_dir]), Listening(host=settings.metrics_host, token=token))


def _finish(plan: "Plan", outcome: "Outcome", console: Console, *, json: bool) -> int:
    from node.events.summary import to_json
    from node.up.end_report import make_report, next_lines, render

    if left_threads.printing_is_stuck():  # the report is for the folder alone: nobody reads on
        make_report(plan, outcome)
        return _code(outcome)
    if json:
        say(sys.stdout, jsonlib.dumps(to_json(make_report(plan, outcome).summary)) + "\n")
        return _code(outcome)
    with console.status("Evaluating the averaged model"):
        report = make_report(plan, outcome)
    console.print(render(report, plan, outcome), highlight=False)
    for line in next_lines(plan):
        console.print(line, soft_wrap=True, highlight=False)
    if outcome.failed:
        names = ", ".join(node.plan.name for node in outcome.failed)
        _say(console, f"\n{names} did not come to the last round. To go on with all: {_again(plan)}")
    return _code(outcome)


def _code(outcome: "Outcome") -> int:
    """Others' model does not make a node's failure a success."""
    return EXIT_FAILED if outcome.failed else 0


def _require_finished(plan: "Plan", outcome: "Outcome") -> None:
    """Raise the nodes' own error when none of the honest ones came through."""
    honest = [node for node in outcome.nodes if not node.plan.byzantine]
    if any(node.code == 0 for node in honest):
        return
    told = next((node for node in honest if node.progress.error), honest[0])
    why = told.progress.error or f"it ended with {told.code}"
    kind: type[P2PTrainError] = UsageError if told.code == EXIT_USAGE else RunError
    hint = told.progress.hint or f"see {told.folder / folders.STDERR}"
    raise kind(f"no honest node finished; {told.plan.name}: {why}", hint)


def _check_task(plan: "Plan") -> list[str]:
    """Build the task here first: missing data, or an attack that the task has no place for, is one clear line, and the
    nodes find the data prepared. The device as well. A task of the user's own is tried; doubts are returned."""
    from node.roles.byzantine import attack_of, poisoned
    from node.roles.task_check import check_task
    from p2ptrain import tasks
    from p2ptrain.tasks import Shard
    from p2ptrain.training.trainer import pick_device

    config = plan.nodes[-1].config  # of the liars, where there are any
    task = tasks.get(config.task.name, **config.task.options)
    poisoned(task, attack_of(config.attack))
    pick_device(config.train.device)
    return check_task(config, task, Shard(count=len(plan.nodes)), nodes=len(plan.nodes))


def _check_room(plan: "Plan") -> None:
    """RunError where the disk has no room for a checkpoint of each node, which share it."""
    from node.training import checkpoint_room
    from node.training.checkpoint import CheckpointStore
    from p2ptrain import tasks
    from p2ptrain.training.model import build_model

    config = plan.nodes[0].config
    model = build_model(tasks.get(config.task.name, **config.task.options), config.train.seed)
    parameters = sum(each.numel() for each in model.parameters() if each.requires_grad)
    stores = [CheckpointStore(plan.run_dir / node.name / folders.CHECKPOINTS) for node in plan.nodes]
    checkpoint_room.check(
        plan.run_dir, parameters, config, spare=sum(store.spare_bytes() for store in stores), nodes=len(plan.nodes)
    )


def _keep_all(config: "Config") -> "Config":
    from dataclasses import replace

    kept: dict[str, Any] = {"node": replace(config.node, checkpoint_keep=max(1, config.train.rounds))}
    return config.model_copy(update=kept)


def _opening(plan: "Plan") -> str:
    from node.system.text import plural

    config = plan.nodes[0].config
    steps = f"{'' if config.node.pace == 'fixed' else 'at most '}{plural(config.train.inner_steps, 'step')}"
    if config.train.inner_steps_schedule != "constant":
        steps += f" on average ({config.train.inner_steps_schedule})"
    liars = f", {plan.byzantine} of them lying ({plan.nodes[-1].config.attack.name})" if plan.byzantine else ""
    rounds, learn = plural(config.train.rounds, "round"), "learns" if len(plan.nodes) == 1 else "learn"
    return (
        f"{plural(len(plan.nodes), 'node')}{liars} {learn} {config.task.name}: {rounds} of "
        f"{steps}, {config.sync.compressor}, {config.sync.aggregator}. Files in {plan.run_dir}"
    )


def _again(plan: "Plan") -> str:
    """The command that goes on: the folder knows the rest."""
    return f"{text.program()} {shlex.join(['up', '--run-dir', str(plan.run_dir)])}"


def _say(console: Console, line: str) -> None:
    console.print(line, highlight=False, soft_wrap=True)


def _cores() -> int:
    """Cores that this process may use, which in a container are fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
