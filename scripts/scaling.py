"""Measures what a node costs beside learning as a swarm grows, and draws it.

    PYTHONHASHSEED=0 python scripts/scaling.py [--nodes 8 16 32 64] [--large 100 1000 10000] [--plot FILE.png]

Real nodes on a virtual clock (`--nodes`): wake-ups and control bytes of a node and virtual second, once all have
joined; the bytes by what they are for, and how many nodes pass on every k-th link of others, by k. The large mode
(`--large`): control bytes of a node and round, by its arithmetic. One JSON line a size.
`--rows FILE` draws from such lines instead of measuring. Rows of several states of the program may stand in one file,
each under its `--label`.

    python scripts/scaling.py --nodes 100 200 --large --regions 20

Of a swarm in regions the resident memory of this process is drawn as well, by node: what was there before the first
run is left out, and what the simulation itself takes is in it.
"""

import argparse
import json
import math
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from node.bench import plot
from node.simulation.control_ledger import ControlLedger
from node.simulation.growth import SETTLED_S, scenario_text, steady_costs
from node.simulation.large.large import play_large
from node.simulation.scenario_file import load_scenario
from node.simulation.twin import play
from node.system.script_end import ended_in_a_line

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ROUNDS = 14
LARGE_ROUNDS = 2
ANNOUNCED_ROUNDS = 32
ROUND_S = 2.0
CUT_S = 1.0
"""All nodes are killed so long after the last measured second: nobody measures how a swarm leaves."""
REAL_NODES = "real nodes on a virtual clock"


def main() -> None:
    """Measure, print, draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="*", default=[8, 16, 32, 64])
    parser.add_argument("--large", type=int, nargs="*", default=[100, 1000, 10000])
    parser.add_argument("--regions", type=int, default=1, help="of the real nodes; 1: a flat swarm")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"of the real nodes, of {ROUND_S:g} s each")
    parser.add_argument("--begin-s", type=float, default=SETTLED_S, help="virtual second from which they are measured")
    parser.add_argument("--label", default=REAL_NODES, help="the name of the rows' curve in the picture")
    parser.add_argument("--rows", type=Path, help="lines of an earlier run")
    parser.add_argument("--plot", type=Path)
    given = parser.parse_args()
    if min([*given.nodes, *given.large, given.rounds, given.regions]) < 1:
        parser.error("--nodes, --large, --rounds and --regions must be 1 or more")
    if any(nodes < given.regions for nodes in given.nodes):
        parser.error(f"--nodes must be {given.regions} or more: each of --regions has a member")
    if given.nodes and (given.rounds - 1) * ROUND_S < given.begin_s + 1:
        parser.error(f"--rounds must be {math.ceil((given.begin_s + 1) / ROUND_S) + 1} or more, to end after --begin-s")
    plot.check(given.plot)
    if given.rows is not None:
        rows = [json.loads(line) for line in given.rows.read_text(encoding="utf-8").splitlines()]
    else:
        rows = []
        for row in measured(given.nodes, given.large, given.regions, given.rounds, given.begin_s):
            row["label"] = given.label
            rows.append(row)
            print(json.dumps(row), flush=True)
    if given.plot is not None:
        plot.write(given.plot, lambda figure: draw(figure, rows))


def measured(
    faithful: Sequence[int],
    large: Sequence[int],
    regions: int = 1,
    rounds: int = ROUNDS,
    begin_s: float = SETTLED_S,
) -> Iterator[dict[str, Any]]:
    """Yield a row a size."""
    resident = psutil.Process().memory_info().rss
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "scaling.toml"
        for nodes in faithful:
            end_s = (rounds - 1) * ROUND_S
            path.write_text(scenario_text(nodes, rounds, regions=regions, cut_s=end_s + CUT_S), encoding="utf-8")
            began = time.process_time()
            ledger = ControlLedger()
            played = play(load_scenario(path), tap=ledger)
            costs = steady_costs(played, begin_s=begin_s, end_s=end_s, ledger=ledger, in_regions=regions > 1)
            yield {
                "mode": "faithful",
                "nodes": nodes,
                "regions": regions,
                "memory_bytes": round((psutil.Process().memory_info().rss - resident) / nodes),
                "wake_ups": round(costs.wake_ups, 1),
                "control_bytes_a_second": round(costs.control_bytes),
                "by_kind": {kind: round(size) for kind, size in costs.by_kind.items()},
                "audit_every": costs.audits,
                "cpu_s": round(time.process_time() - began, 1),
            }
        for nodes in large:
            path.write_text(scenario_text(nodes, LARGE_ROUNDS, mode="large"), encoding="utf-8")
            began = time.process_time()
            course = play_large(load_scenario(path))
            control = course.swarm.announce(ANNOUNCED_ROUNDS, ROUND_S)
            yield {
                "mode": "large",
                "nodes": nodes,
                "control_bytes_a_round": round(control),
                "cpu_s": round(time.process_time() - began, 1),
            }


def draw(figure: "Figure", rows: Sequence[dict[str, Any]]) -> None:
    """Draw wake-ups, and control bytes, each beside what grows with log n."""
    faithful = [row for row in rows if row["mode"] == "faithful"]
    large = [row for row in rows if row["mode"] == "large"]
    in_regions = any(row.get("regions", 1) > 1 for row in faithful)
    panels = list(figure.subplots(1, 3 if in_regions else 2))
    _curves(panels[0], faithful, "wake_ups", 1.0, first=in_regions)
    size = "small" if in_regions else None  # three titles beside each other
    panels[0].set_title("Wake-ups of a node in a second", fontsize=size)
    _curves(panels[1], faithful, "control_bytes_a_second", 1e-3, first=in_regions)
    if large:
        counted = [(row["nodes"], row["control_bytes_a_round"] / ROUND_S / 1000) for row in large]
        panels[1].plot(*zip(*counted, strict=True), "s-", label="large mode, by arithmetic")
        panels[1].legend()
    panels[1].set_title("Control bytes of a node in a second, kB", fontsize=size)
    if in_regions:
        _curves(panels[2], faithful, "memory_bytes", 1e-6, first=True)
        panels[2].set_title("Resident memory by node, MB", fontsize=size)
    for axes in panels:
        axes.set_ylim(bottom=0)


def _curves(axes: "Axes", rows: Sequence[dict[str, Any]], what: str, scale: float, *, first: bool) -> None:
    """Draw a curve of each label beside its logarithm: through its first point, or above all of its points."""
    for label in dict.fromkeys(row.get("label", REAL_NODES) for row in rows):
        points = [(row["nodes"], scale * row[what]) for row in rows if row.get("label", REAL_NODES) == label]
        (line,) = axes.plot(*zip(*points, strict=True), "o-", label=label)
        slopes = [value / math.log2(nodes) for nodes, value in points]
        slope = slopes[0] if first else max(slopes)
        ends = [points[0][0], points[-1][0]]
        bound = [slope * math.log2(nodes) for nodes in ends]
        axes.plot(ends, bound, "--", color=line.get_color() if first else "grey", label=f"{slope:.1f} log2 n")
    axes.set_xscale("log", base=2)
    axes.set_xlabel("nodes")
    axes.legend()


if __name__ == "__main__":
    with ended_in_a_line():
        main()
