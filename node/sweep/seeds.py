"""One scenario under many seeds: each a cell of a sweep's executor, so that they run side by side, here or on a
cluster.

Where a folder is given, a line a seed is kept there as soon as it is done. The same command then runs what is missing:
a seed is known by what decides its outcome, so that a changed file or setting runs anew.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, TypeAlias

from node.bench.swarm.results import append_line, rows_in
from node.simulation.scenario_file import LoadedScenario
from node.simulation.verdict import replay_command
from node.sweep.base import Cell, Outcome
from node.sweep.executors import EXECUTORS
from node.sweep.scenario_cells import CALIBRATION, FILE, KEPT, SETS, UNTIL, ScenarioCells
from node.sweep.sweep import DONE, FAILED
from node.sweep.sweep_plan import cell_name
from node.system.errors import UsageError
from node.system.run_dir import locked, make_dir

SEEDS: Final = "seeds.jsonl"
"""In the folder: a line a seed."""

MOST_SEEDS: Final = 10_000
"""Of one command: at ten seconds each, a day on one core."""

SeedRow: TypeAlias = dict[str, Any]
"""What came of a seed, as JSON values."""


def parse_seeds(text: str) -> tuple[int, ...]:
    """Return the seeds that a text names, such as "0-19" or "1,4,7-9", each once and in order. Raises UsageError."""
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = (word.strip() for word in part.partition("-"))
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise UsageError(f"--seeds {text!r} is no list of seeds", "for example --seeds 0-19, or --seeds 1,4,7-9")
        begin, end = int(first), int(last or first)
        if end < begin or end - begin >= MOST_SEEDS:
            raise UsageError(f"--seeds {text!r}: {part} is empty, or more than {MOST_SEEDS:,} seeds", "give fewer")
        found |= set(range(begin, end + 1))
    if len(found) > MOST_SEEDS or max(found) >= 1 << 63:
        raise UsageError(
            f"--seeds {text!r}: {MOST_SEEDS:,} seeds at most, each below 2^63", "give fewer, or smaller ones"
        )
    return tuple(sorted(found))


@dataclass(kw_only=True)
class SeedRuns:
    """Seeds of a scenario. `out`: where a line a seed is kept; None: nowhere. `kept`: how many were there already."""

    loaded: LoadedScenario
    seeds: Sequence[int]
    executor: str = "processes"
    jobs: int = 1
    out: Path | None = None
    kept: int = field(default=0, init=False)

    def run(self) -> Iterator[SeedRow]:
        """Yield a row a seed, as they end: first those that are kept. Nothing of it runs any more once the iterator is
        closed. Raises UsageError, and RunError where another process works in the folder."""
        executor, cells = EXECUTORS.get(self.executor), self._cells()
        if self.out is None:
            yield from (self._row(cell, outcome) for cell, outcome in executor.run(cells, self.jobs))
            return
        with locked(make_dir(self.out)):
            there = {row["cell"]: row for row in rows_in(self.out / SEEDS) if row.get("status") == DONE}
            kept = [there[cell.id] for cell in cells if cell.id in there]
            self.kept = len(kept)
            yield from kept
            for cell, outcome in executor.run([cell for cell in cells if cell.id not in there], self.jobs):
                row = self._row(cell, outcome)
                append_line(self.out / SEEDS, json.dumps(row, allow_nan=False))
                yield row

    def _cells(self) -> list[Cell]:
        loaded = self.loaded
        settings: dict[str, Any] = {FILE: str(loaded.path.absolute()), SETS: list(loaded.sets), "train.seed": None}
        settings[UNTIL] = loaded.scenario.until_s
        if loaded.calibration is not None:
            settings[CALIBRATION] = str(loaded.calibration.absolute())
        runner = ScenarioCells()
        return [
            Cell(
                id=cell_name(runner.name, runner.document(settings, seed)),
                runner=runner.name,
                settings=settings,
                varied={},
                seed=seed,
            )
            for seed in self.seeds
        ]

    def _row(self, cell: Cell, outcome: Outcome) -> SeedRow:
        scenario = self.loaded.scenario.model_copy(update={"seed": cell.seed})
        replay = replay_command(replace(self.loaded, scenario=scenario))
        row: SeedRow = {"seed": cell.seed, "cell": cell.id, "scenario": self.loaded.path.name, "replay": replay}
        if not isinstance(outcome, dict):
            return {**row, "status": FAILED, "error": outcome.error, "broken": []}
        figures = {key: outcome[key] for key in (*KEPT, "loss", "sent_bytes", "seconds")}
        return {**row, "status": DONE, "error": None, **figures}


def in_words(row: SeedRow) -> str:
    """Return what came of a seed, for a line."""
    if row["status"] != DONE:
        return f"seed {row['seed']}: failed: {row['error']}"
    loss = "no loss" if row["loss"] is None else f"loss {row['loss']:.4f}"
    rounds = f"{row['rounds_min']}-{row['rounds_max']}".removeprefix(f"{row['rounds_max']}-")
    ends = "".join(f"; broken: {line}" for line in row["broken"])
    return (
        f"seed {row['seed']}: {row['finished']} of {row['honest']} came to the last round, {rounds} rounds, {loss}, "
        f"{row['seconds']:.1f} virtual seconds in {row['wall_s']:.1f}, events {row['events_digest']}{ends}"
    )


def is_well(row: SeedRow) -> bool:
    """Return whether it ran to its end, and no invariant is broken."""
    return row["status"] == DONE and not row["broken"]
