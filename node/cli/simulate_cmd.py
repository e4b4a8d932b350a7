"""`p2ptrain simulate`: a whole swarm on a virtual clock, from one scenario file."""

import json as jsonlib
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from node.cli import options
from node.system.errors import EXIT_FAILED, RunError, UsageError, is_interrupt, translate
from node.system.safe_io import say

if TYPE_CHECKING:
    from rich.table import Table

    from node.simulation.large.large_swarm import LargeSwarm
    from node.simulation.like_run import Compared
    from node.simulation.scenario_file import LoadedScenario
    from node.simulation.twin import Twin
    from node.simulation.verdict import Course, SimulationResult

SCENARIO = "scenario.toml"
RESULT = "simulation.json"


def simulate(
    scenario: Annotated[Path, typer.Argument(metavar="SCENARIO", help="A scenario file; see configs/scenarios/.")],
    seed: Annotated[int | None, typer.Option(min=0, help="Of everything that is drawn. (default: the file's)")] = None,
    until: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Virtual seconds after which it ends. (default: the file's)")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Leave every node's folder there, as `up` does in its run folder."),
    ] = None,
    like: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN",
            help="First write SCENARIO like the run in this folder: its settings, and speeds by its nodes' logs. Then "
            "hold the two against each other.",
        ),
    ] = None,
    calibration: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Of `p2ptrain bench calibrate`: nodes without a device compute as this machine does."
        ),
    ] = None,
    seeds: Annotated[
        str | None,
        typer.Option(metavar="LIST", help="Each of these seeds, such as 0-19 or 1,4,7-9; a line a seed as they end."),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(min=1, max=256, help="Of --seeds, how many at a time. (default: as many as there are cores)"),
    ] = None,
    executor: Annotated[
        str | None,
        typer.Option(
            help="What runs --seeds: processes; ray, a cluster; here, this very process. (default: processes)"
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON document instead of text.")] = False,
    set_: options.Sets = None,
) -> int:
    """Rehearse a swarm: real nodes on a virtual clock, over links, devices and failures that a file describes.

    The same file and seed give the same events, on any day. Exit code 1: an invariant of the file (assert) is broken,
    or a node failed; the line that plays it again is printed. With --seeds, --out keeps a line a seed, and seeds that
    are there are not run again.
    """
    from node.simulation.course import check_course
    from node.simulation.sealed import hashes_are_fixed

    if seeds is None and (jobs is not None or executor is not None):
        raise UsageError("--jobs and --executor say how --seeds are run", "add --seeds, such as --seeds 0-19")
    executor = executor or "processes"
    if seeds is not None and (seed is not None or like is not None):
        raise UsageError("--seeds goes with neither --seed nor --like", "leave one of them out")
    if like is not None:
        _write_like(scenario, like)
    if not hashes_are_fixed():
        many = [] if seeds is None else ["--seeds", seeds, "--executor", executor]
        many += [] if jobs is None else ["--jobs", str(jobs)]
        _again_with_fixed_hashes(scenario, seed, until, out, like, calibration, many, json=json, sets=set_ or [])
    from node.simulation.scenario_file import load_scenario

    loaded = load_scenario(scenario, set_ or (), seed=seed, until_s=until)
    if calibration is not None:
        from node.planning.calibrated import as_measured

        loaded = as_measured(loaded, calibration)
    check_course(loaded)
    if seeds is not None:
        return _seeds(loaded, seeds, out, executor, jobs, json=json)
    if out is not None:
        _prepare(out, loaded)
    result, beside = _played(loaded, out, like, quiet=json)
    document = result.to_json() | ({"compared": [asdict(each) for each in beside]} if beside else {})
    if out is not None:
        (out / RESULT).write_text(jsonlib.dumps(document, indent=2) + "\n", encoding="utf-8")
    if json:
        say(sys.stdout, jsonlib.dumps(document) + "\n")
    else:
        _tell(result)
        _tell_assumed(loaded)
        if beside:
            _tell_beside(beside)
    if result.broken:
        _complain(result)
    return EXIT_FAILED if result.broken else 0


def _tell_assumed(loaded: "LoadedScenario") -> None:
    """Say whose steps take what nobody measured or said."""
    from node.simulation.scenario import DeviceClass

    if names := [group.name for group in loaded.scenario.nodes if group.device is None]:
        said = f"{', '.join(names)}: no device is set, and a step is assumed to take {DeviceClass().step_s:g} s"
        say(sys.stdout, f"{said}; --calibration FILE has what this machine takes\n")


def _again_with_fixed_hashes(
    scenario: Path,
    seed: int | None,
    until: float | None,
    out: Path | None,
    like: Path | None,
    calibration: Path | None,
    many: list[str],
    *,
    json: bool,
    sets: list[str],
) -> None:
    """Start this command anew in place of this process: the seed of hashes is read when Python starts."""
    words = ["-m", "p2ptrain", "simulate", str(scenario)]
    words += [] if seed is None else ["--seed", str(seed)]
    words += [] if until is None else ["--until", repr(until)]
    words += [] if out is None else ["--out", str(out)]
    words += [] if like is None else ["--like", str(like)]
    words += [] if calibration is None else ["--calibration", str(calibration)]
    words += many
    words += ["--json"] if json else []
    words += ["--debug"] if "--debug" in sys.argv else []  # an option of the program, which no command is given
    for text in sets:
        words += ["--set", text]
    sys.stdout.flush()
    os.execve(sys.executable, [sys.executable, *words], os.environ | {"PYTHONHASHSEED": "0"})


def _prepare(out: Path, loaded: "LoadedScenario") -> None:
    """Make the folder. UsageError where something is in it: nodes would go on from there."""
    from node.system.run_dir import make_dir

    if out.is_dir() and any(out.iterdir()):
        raise UsageError(f"{out} is not empty", "give a new folder with --out: nodes would go on from what is there")
    make_dir(out)
    (out / SCENARIO).write_text(loaded.to_toml(), encoding="utf-8")


def _write_like(path: Path, run: Path) -> None:
    """Write the scenario of a run. UsageError where the file holds something else already."""
    from node.simulation.like_run import scenario_like

    text = scenario_like(run)
    if path.exists() and path.read_text(encoding="utf-8") != text:
        raise UsageError(
            f"{path} is there, and is not like {run}", "give another file for SCENARIO, or leave out --like"
        )
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror}", "give another file for SCENARIO") from error


def _course(loaded: "LoadedScenario", out: Path | None, show: "Callable[[str], None] | None") -> "Course":
    """Play it in its mode."""
    from node.simulation.course import play_course

    if show is None:
        return play_course(loaded, out)
    return play_course(
        loaded,
        out,
        faithful=lambda twin: show(_progress(twin)),
        large=lambda swarm: show(_progress_large(swarm)),
    )


def _seeds(
    loaded: "LoadedScenario", seeds: str, out: Path | None, executor: str, jobs: int | None, *, json: bool
) -> int:
    """Play the scenario under each of these seeds, and say a line of each as they end."""
    from node.sweep.seeds import SeedRuns, in_words, is_well, parse_seeds
    from node.system.process_use import cores_of_process
    from node.system.signals import ended_in_order

    jobs = jobs or cores_of_process()
    runs = SeedRuns(loaded=loaded, seeds=parse_seeds(seeds), executor=executor, jobs=jobs, out=out)
    rows = []
    with ended_in_order():
        try:
            for row in runs.run():
                rows.append(row)
                if not json:
                    say(sys.stdout, f"{in_words(row)}\n")
        except KeyboardInterrupt:
            done = f"{len(rows)} of {len(runs.seeds)} seeds were done"
            kept = f"they are in {out}, and the same command goes on" if out else "nothing is kept without --out"
            print(f"Interrupted: {done}; {kept}", file=sys.stderr)
            raise
    rows.sort(key=lambda row: row["seed"])
    bad = [row for row in rows if not is_well(row)]
    if json:
        document = {"scenario": loaded.path.name, "kept": runs.kept, "not_well": [row["seed"] for row in bad]}
        say(sys.stdout, jsonlib.dumps(document | {"seeds": rows}, allow_nan=False) + "\n")
    else:
        there = f" ({runs.kept} of them were there already)" if runs.kept else ""
        say(sys.stdout, f"{len(rows) - len(bad)} of {len(rows)} seeds kept every promise{there}.\n")
    for row in bad:
        print(f"seed {row['seed']}, play it again: {row['replay']}", file=sys.stderr)
    return EXIT_FAILED if bad else 0


def _played(
    loaded: "LoadedScenario", out: Path | None, like: Path | None, *, quiet: bool
) -> "tuple[SimulationResult, list[Compared]]":
    """Simulate. Every error that is not the file's names the command that plays it again."""
    from node.simulation.like_run import compared, real_nodes
    from node.simulation.verdict import judged, replay_command

    try:
        with _line(quiet) as show:
            course = _course(loaded, out, show)
        return judged(course), [] if like is None else compared(real_nodes(like), course)
    except BaseException as error:
        if is_interrupt(error) or not isinstance(error, Exception):
            raise
        known = translate(error)
        if isinstance(known, UsageError):
            raise
        raise RunError(known.message, f"{known.hint}; play it again: {replay_command(loaded)}".lstrip("; ")) from error


@contextmanager
def _line(quiet: bool) -> Iterator["Callable[[str], None] | None"]:
    """A line that says how far it is, on a terminal. It is drawn from outside of the simulation, and by no thread."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.live import Live

    with Live(console=Console(stderr=True), auto_refresh=False, transient=True) as live:
        yield lambda line: live.update(line, refresh=True)


def _progress(twin: "Twin") -> str:
    import trio

    honest = twin.honest
    rounds = [member.told.rounds for member in honest]
    up = sum(member.running for member in twin.members.values())
    last = twin.loaded.configs[honest[0].group.name].train.rounds if honest else 0
    return (
        f"{trio.current_time():.0f} of at most {twin.scenario.until_s:g} virtual seconds; "
        f"{up} of {len(twin.members)} nodes run; rounds {min(rounds, default=0)} to {max(rounds, default=0)} of {last}"
    )


def _progress_large(swarm: "LargeSwarm") -> str:
    honest = [node for node in swarm.nodes if not node.lied]
    rounds = [node.round for node in honest]
    last = honest[0].config.train.rounds if honest else 0
    return (
        f"{swarm.now:.0f} virtual seconds; {sum(node.present for node in swarm.nodes)} of {len(swarm.nodes)} nodes are "
        f"there; rounds {min(rounds, default=0)} to {max(rounds, default=0)} of {last}"
    )


def _tell(result: "SimulationResult") -> None:
    from rich.console import Console

    console = Console()
    console.print(_table(result), highlight=False)
    loss = "" if result.loss_mean is None else f", mean held-out loss {result.loss_mean:.4f}"
    console.print(
        f"{result.finished} of {result.honest} honest nodes came to the last round{loss}. "
        f"{result.virtual_s:.1f} virtual seconds in {result.wall_s:.1f}. "
        f"Seed {result.seed}, events {result.events_digest}.",
        highlight=False,
        soft_wrap=True,
    )


def _table(result: "SimulationResult") -> "Table":
    """Of 80 columns at most, with names of up to 16 letters: longer ones are broken, and figures never."""
    from rich.table import Table

    from node.system import text

    table = Table(box=None, pad_edge=False)
    for title in ("group", "nodes", "done", "rounds", "loss", "used", "sent", "stale", "starts"):
        is_name = title == "group"
        table.add_column(title, justify="left" if is_name else "right", no_wrap=not is_name, overflow="fold")
    for it in result.groups:
        table.add_row(
            f"{it.group} (lies)" if it.byzantine else it.group,
            str(it.nodes),
            str(it.finished),
            str(it.rounds_max) if it.rounds_min == it.rounds_max else f"{it.rounds_min}-{it.rounds_max}",
            "" if it.loss is None else f"{it.loss:.4f}",
            "" if it.utilization is None else f"{it.utilization:.0%}",
            text.size(int(it.bytes_sent_mean)),
            "" if it.staleness_mean is None else f"{it.staleness_mean:.2f} ({it.staleness_max})",
            str(it.starts),
        )
    return table


def _tell_beside(beside: "list[Compared]") -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for title in ("beside the run", "run", "twin", "off"):
        table.add_column(title, justify="left" if title == "beside the run" else "right")
    for each in beside:
        real, twin = ("" if value is None else f"{value:,.4g} {each.unit}" for value in (each.real, each.simulated))
        table.add_row(each.what, real, twin, "" if each.off is None else f"{each.off:+.1%}")
    Console().print(table, highlight=False)


def _complain(result: "SimulationResult") -> None:
    for line in result.broken:
        print(f"broken: {line}", file=sys.stderr)
    print(f"play it again: {result.replay}", file=sys.stderr)
