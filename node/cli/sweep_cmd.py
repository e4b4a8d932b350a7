"""`p2ptrain sweep`: every combination of a grid of settings, run once and kept."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from node.cli import options
from node.cli.waiting import Waiting

if TYPE_CHECKING:
    from node.sweep.sweep import Sweep
    from node.sweep.sweep_plan import SweepPlan


def sweep(
    plan: Annotated[
        Path, typer.Argument(metavar="PLAN.toml", help="Settings, a grid and seeds: docs/how-to/report.md.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="Keep cells.jsonl and rows.parquet there; cells found there are not repeated."
        ),
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, max=256, help="Cells at a time, a process and a thread each.")] = 1,
    executor: Annotated[
        str, typer.Option(help="What runs the cells: processes; ray, a cluster; here, this very process.")
    ] = "processes",
    retry: Annotated[bool, typer.Option("--retry", help="Run cells again that have no result.")] = False,
    cell: Annotated[
        str | None, typer.Option(metavar="ID", help="Run this one cell here, and print its row; nothing is written.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count the cells, and run none.")] = False,
    json: options.Json = False,
) -> int:
    """Run every combination of a grid of settings and seeds, resumably, into a table that `p2ptrain report` shows.

    It may be stopped at any time, by Ctrl-C or the power: the same command goes on where it was.
    """
    import json as jsonlib

    from node.sweep.sweep import FAILED, REFUSED, Sweep, one_cell, told
    from node.sweep.sweep_plan import read_sweep
    from node.system.errors import EXIT_FAILED, RunError, UsageError

    found = read_sweep(plan)
    if cell is not None:
        ran, outcome = one_cell(found, cell)
        if not isinstance(outcome, dict):
            raise RunError(f"{ran.words()}: {outcome.error}")
        typer.echo(jsonlib.dumps({"cell": ran.id, **outcome}, allow_nan=False))
        return 0
    if dry_run:
        return _count(found)
    if out is None:
        raise UsageError("a sweep keeps what it has run", "give --out FOLDER")
    with Waiting() as say:
        it = Sweep(plan=found, out=out, jobs=jobs, executor=executor, retry=retry, say=say)
        rows = _run(it, json=json, say=say)
    failed, refused = ([row for row in rows if row["status"] == status] for status in (FAILED, REFUSED))
    _end(it, rows, failed, refused, json=json)
    for row in failed[:5]:
        typer.echo(f"{told(row)}; again: {row['replay']}", err=True)
    return EXIT_FAILED if failed or len(refused) == len(rows) else 0


def _run(it: "Sweep", *, json: bool, say: Waiting) -> list[dict[str, Any]]:
    import json as jsonlib

    from node.system import safe_io
    from node.system.signals import ended_in_order

    rows = []
    with ended_in_order():
        try:
            for row in it.run():
                rows.append(row)
                if json:
                    safe_io.say(sys.stdout, jsonlib.dumps(row, allow_nan=False) + "\n")
        except KeyboardInterrupt:
            say(0, 0, f"Interrupted. The same command goes on: {len(rows)} cells are in {it.out}")
            raise
    return rows


def _end(
    it: "Sweep",
    rows: list[dict[str, Any]],
    failed: list[dict[str, Any]],
    refused: list[dict[str, Any]],
    *,
    json: bool,
) -> None:
    from node.bench.base import left_out
    from node.sweep.sweep import ROWS
    from node.system.text import plural

    why: dict[str, str] = {}
    for row in refused:
        why.setdefault(" ".join(f"{key}={value}" for key, value in row["varied"].items()) or "the base", row["error"])
    for note in left_out({**it.refused, **why}):
        typer.echo(note, err=True)
    if it.others:
        typer.echo(f"{plural(it.others, 'cell')} of other plans are kept in {it.out}, and not in this table", err=True)
    if not json:
        ends = [f"{len(each)} of them {status}" for each, status in ((failed, "failed"), (refused, "refused")) if each]
        typer.echo(f"{', '.join([plural(len(rows), 'cell'), *ends])}: {it.out / ROWS}")
        typer.echo(f"p2ptrain report {it.out}")


def _count(plan: "SweepPlan") -> int:
    from node.bench.base import left_out
    from node.system.text import plural

    refused: dict[str, str] = {}
    cells = list(plan.cells(refused))
    for note in left_out(refused):
        typer.echo(note, err=True)
    typer.echo(f"{plural(len(cells), 'cell')}, {plural(len(plan.seeds), 'seed')} each")
    return 0
