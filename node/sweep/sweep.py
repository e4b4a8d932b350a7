"""A sweep in a folder: cells that are done already, those still to be run, and the table of all.

plan-*.toml    each plan with whole paths, by which its cells are run again, named by a digest of it
cells.jsonl    a line a cell, written and synced as it is done: nothing of it is lost by kill -9
rows.parquet   the same as a table, written again as cells come, whole or not at all
lock           held by the sweep that runs
"""

import hashlib
import json
import shlex
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from node.bench.quality import parquet
from node.bench.swarm.results import append_line, rows_in
from node.sweep.base import Cell, CellExecutor, CellFailure, CellRow, Outcome
from node.sweep.executors import EXECUTORS
from node.sweep.sweep_plan import SweepPlan
from node.system import build
from node.system.errors import UsageError
from node.system.run_dir import locked, write_atomic

CELLS, ROWS = "cells.jsonl", "rows.parquet"
_DIGITS: Final = 8
"""Of a plan's digest, in the name of its file."""
DONE, FAILED, REFUSED = "done", "failed", "refused"

TABLE_SHARE: Final = 0.02
"""Largest share of the time in which the table is written: with many cells it comes less often."""

Say = Callable[[int, int, str], None]
"""Called with each cell: how many are done, of how many, and what came of it."""


@dataclass(kw_only=True)
class Sweep:
    """A plan carried out in a folder."""

    plan: SweepPlan
    out: Path
    jobs: int = 1
    executor: str = "processes"
    retry: bool = False
    """Whether cells without a result are run again: what broke them may have been mended."""
    say: Say = lambda done, total, line: None
    refused: dict[str, str] = field(default_factory=dict)
    """Combinations that cannot be, with why."""
    others: int = 0
    """Cells of other plans in the folder, which are kept, and are not in this plan's rows."""

    def run(self) -> Iterator[CellRow]:
        """Yield every cell's row: first those that are there. UsageError where no cell can be, RunError where another
        sweep is at work in the folder."""
        executor = EXECUTORS.get(self.executor)
        cells = {cell.id: cell for cell in self.plan.cells(self.refused)}
        if not cells:
            raise UsageError(
                next(iter(self.refused.values()), "the plan has no cells"), "no cell of the plan can be run"
            )
        parquet.check(self.out)
        with locked(self.out):
            rows = {row["cell"]: row for row in rows_in(self.out / CELLS) if isinstance(row.get("cell"), str)}
            self.others = len(rows.keys() - cells.keys())
            kept = {
                name: self._named(rows[name], cell) for name, cell in cells.items() if self._is_over(rows.get(name))
            }
            write_atomic(self.plan_file, self.plan.as_toml().encode())
            try:
                yield from kept.values()
                for row in self._new(executor, [each for name, each in cells.items() if name not in kept], kept):
                    kept[row["cell"]] = row
                    yield row
            finally:
                parquet.write(self.out / ROWS, list(kept.values()))

    @property
    def plan_file(self) -> Path:
        """The plan's copy in the folder: a later plan does not take the place of an earlier one."""
        return self.out / f"plan-{hashlib.blake2b(self.plan.as_toml().encode()).hexdigest()[:_DIGITS]}.toml"

    def _is_over(self, row: CellRow | None) -> bool:
        return row is not None and (row.get("status") == DONE or not self.retry)

    def _named(self, row: CellRow, cell: Cell) -> CellRow:
        """The row as this plan calls it: with its own varied settings, whichever plan it was run for."""
        return {**row, "sweep": self.plan.name, "varied": self._varied(cell)}

    def _varied(self, cell: Cell) -> dict[str, Any]:
        return {key: cell.varied[key] for key in self.plan.varied}

    def _new(self, executor: CellExecutor, cells: list[Cell], kept: dict[str, CellRow]) -> Iterator[CellRow]:
        if kept:
            self.say(0, len(cells), f"{len(kept)} cells were there already in {self.out}")
        if not cells:
            return
        code = {"version": build.version(), "commit": build.commit()}
        written, cost = time.monotonic(), 0.0
        for done, (cell, outcome) in enumerate(executor.run(cells, self.jobs), start=1):
            row = {**self._labels(cell), **code, **_result(outcome)}
            line = json.dumps(row, allow_nan=False)
            append_line(self.out / CELLS, line)
            self.say(done, len(cells), f"{cell.words()}: {told(row)}")
            yield json.loads(line)
            if time.monotonic() - written >= cost / TABLE_SHARE:
                begun = time.monotonic()
                parquet.write(self.out / ROWS, list(kept.values()))
                written = time.monotonic()
                cost = written - begun

    def _labels(self, cell: Cell) -> CellRow:
        replay = ["p2ptrain", "sweep", str(self.plan_file.absolute()), "--cell", cell.id]  # from whatever folder
        return {
            "sweep": self.plan.name,
            "cell": cell.id,
            "run": cell.runner,
            "seed": cell.seed,
            "varied": self._varied(cell),
            "settings": dict(cell.settings),
            "plan": self.plan.digest,
            "replay": shlex.join(replay),
        }


def _result(outcome: Outcome) -> CellRow:
    if isinstance(outcome, CellFailure):
        return {"status": REFUSED if outcome.refused else FAILED, "error": outcome.error}
    return {**outcome, "status": DONE, "error": None}


def told(row: CellRow) -> str:
    """Return what came of a cell, for a line."""
    if row["status"] != DONE:
        return f"{row['status']}: {row['error']}"
    return "diverged" if row["loss"] is None else f"loss {row['loss']:.4f}"


def one_cell(plan: SweepPlan, name: str) -> tuple[Cell, Outcome]:
    """Run the cell of a name, or of its first digits, in this process; nothing is written. UsageError where there is
    none."""
    refused: dict[str, str] = {}
    found = [cell for cell in plan.cells(refused) if cell.id.startswith(name)]
    if len(found) != 1:
        raise UsageError(f"--cell {name}: {len(found)} cells of the plan have that name", "as the column `cell` has it")
    return next(EXECUTORS.get("here").run(found, 1))
