"""A plan against simulations: is what is foretold to be sooner at a loss sooner, and is the recommended H the best?

    export PYTHONHASHSEED=0
    .venv/bin/python scripts/plan_against_simulate.py --out plan-against-simulate.jsonl [--count 200] [--jobs 2]
    .venv/bin/python scripts/plan_against_simulate.py --out plan-h-grid.jsonl --grid [--jobs 2]

The first plays random configurations (node/planning/simulated_runs.py), the second a grid of H on each of four links. A
line is written as each is done, and what a file has is not played again: killed, it goes on where it was. Plans are
made when the file is read, so that another planner needs no new simulations: --report plays nothing.
"""

import argparse
import json
import math
import multiprocessing
import os
import resource
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from node.planning.advice import NOTCHES, best_inner_steps
from node.planning.simulated_runs import (
    MOST_H,
    RULES,
    SwarmSetup,
    correlation_interval,
    drawn_setup,
    foretold,
    rank_correlation,
    simulated_time,
)
from node.system.script_end import ended_in_a_line

SEED = 20261126
GRID_UP_MBIT = (0.05, 0.2, 1.0, 5.0)
GRID_STEP_S, GRID_RTT_S, GRID_NODES = 0.05, 0.08, 8
GRID_NUMBERS = 1000
"""The grid's configurations are numbered from here on."""


def main(words: Sequence[str]) -> None:
    """Play what the file lacks, and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--grid", action="store_true")
    parser.add_argument("--report", action="store_true", help="play nothing")
    given = parser.parse_args(list(words))
    setups = grid() if given.grid else [drawn_setup(number, seed=SEED) for number in range(given.count)]
    done = {row["number"]: row for row in rows_of(given.out)}
    if not given.report:
        todo = [each for each in setups if each.number not in done]
        with given.out.open("a", encoding="utf-8") as file:
            for row in played(todo, given.jobs):
                done[row["number"]] = row
                file.write(json.dumps(row) + "\n")
                file.flush()
    found = [(each, done[each.number]) for each in setups if each.number in done]
    (report_grid if given.grid else report)(found)


def grid() -> list[SwarmSetup]:
    """Every notch of H on every link, the middle ones first."""
    steps = sorted((each for each in NOTCHES if each <= MOST_H), key=lambda each: abs(math.log(each / 8)))
    return [
        SwarmSetup(
            number=GRID_NUMBERS + number,
            nodes=GRID_NODES,
            degree=GRID_NODES - 1,
            up_mbit=up_mbit,
            step_s=GRID_STEP_S,
            rtt_s=GRID_RTT_S,
            inner_steps=inner_steps,
            sync=RULES[0],
        )
        for number, (inner_steps, up_mbit) in enumerate((each, up) for each in steps for up in GRID_UP_MBIT)
    ]


def played(setups: Sequence[SwarmSetup], jobs: int) -> Iterator[dict[str, Any]]:
    """A row of each, as they are done."""
    if not setups:
        return
    with multiprocessing.get_context("spawn").Pool(max(1, min(jobs, len(setups)))) as pool:
        yield from pool.imap_unordered(play, setups)


def play(setup: SwarmSetup) -> dict[str, Any]:
    """What a simulation of it found, with the seconds of a core that it took."""
    before = resource.getrusage(resource.RUSAGE_SELF)
    found = simulated_time(setup)
    after = resource.getrusage(resource.RUSAGE_SELF)
    reached = math.isfinite(found.seconds)
    return {
        "number": setup.number,
        "setup": asdict(setup),
        "seconds": found.seconds if reached else None,
        "round_s": found.round_s,
        "steps": found.steps if reached else None,
        "cpu_s": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
    }


def rows_of(file: Path) -> list[dict[str, Any]]:
    """The rows of a file; the last line of one that was killed may be half a line."""
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True) if file.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def report(found: Sequence[tuple[SwarmSetup, dict[str, Any]]]) -> None:
    """Print rank correlations, of all and of each strategy."""
    for name in ("all", *sorted({str(setup.sync["strategy"]) for setup, _ in found})):
        some = [(setup, row) for setup, row in found if name in ("all", setup.sync["strategy"])]
        plans = [foretold(setup) for setup, _ in some]
        days = [each.days_to_equal_loss for each in plans]
        seconds = [seconds_of(row) for _, row in some]
        low, high = correlation_interval(days, seconds)
        rounds = rank_correlation([each.times.round_s for each in plans], [row["round_s"] for _, row in some])
        steps = rank_correlation(
            [
                plan.days_to_equal_loss / plan.times.round_s * setup.inner_steps
                for plan, (setup, _) in zip(plans, some, strict=True)
            ],
            [math.inf if row["steps"] is None else row["steps"] for _, row in some],
        )
        print(
            f"{name}: {len(some)} configurations, {sum(math.isinf(each) for each in seconds)} never at the loss; rank "
            f"correlation of time to loss {rank_correlation(days, seconds):.3f} ({low:.3f} to {high:.3f}), of a "
            f"round's time {rounds:.3f}, of steps to the loss {steps:.3f}"
        )
    print(f"CPU seconds of the simulations: {sum(row['cpu_s'] for _, row in found):.0f}")


def report_grid(found: Sequence[tuple[SwarmSetup, dict[str, Any]]]) -> None:
    """Print the recommended H beside the best of the grid, for each link."""
    for up_mbit in GRID_UP_MBIT:
        times = {setup.inner_steps: seconds_of(row) for setup, row in found if setup.up_mbit == up_mbit}
        if not times:
            continue
        best = min(times, key=lambda steps: times[steps])
        told = best_inner_steps(replace(found[0][0], up_mbit=up_mbit).request()).request.config.train.inner_steps
        away = abs(NOTCHES.index(told) - NOTCHES.index(best))
        behind = f"{100 * (times[told] / times[best] - 1):.0f}% behind" if told in times else "not in the grid"
        line = ", ".join(f"{steps}: {times[steps]:.1f}" for steps in sorted(times))
        print(
            f"{up_mbit:g} Mbit/s: recommended {told}, best {best}, {away} notches away, {behind}; seconds by H {line}"
        )


def seconds_of(row: dict[str, Any]) -> float:
    """Virtual seconds to the loss; infinite where it was never there."""
    return math.inf if row["seconds"] is None else float(row["seconds"])


if __name__ == "__main__":
    with ended_in_a_line():
        main(sys.argv[1:])
