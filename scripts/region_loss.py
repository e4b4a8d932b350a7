"""What the loss of a region costs: a scenario with its events and without them, seed by seed.

    python scripts/region_loss.py configs/scenarios/region-cut-off.toml --seeds 0-19 --out DIR

For each seed: the rounds from the end of the last event until every node has averaged with the other regions again, the
held-out loss ten rounds after that event and at the end, each over that of the same seed without events, bans of honest
nodes and broken promises. `--set` as of `p2ptrain simulate`. Seeds that --out has are not played again.
"""

import argparse
import hashlib
import json
import multiprocessing
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from statistics import fmean, median
from tempfile import TemporaryDirectory
from typing import Any

from node.simulation.scenario_file import LoadedScenario, load_scenario
from node.simulation.twin import play
from node.simulation.verdict import judged
from node.system.errors import UsageError
from node.system.script_end import ended_in_a_line

AFTER = 10
"""Rounds."""

Curve = Mapping[int, float]
"""Mean held-out loss of the honest nodes by round."""


def main() -> None:
    """Play what is missing, and print a line a seed and the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenario", type=Path)
    parser.add_argument("--seeds", default="0-19")
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    try:
        load_scenario(asked.scenario, asked.set, seed=0)
    except UsageError as error:
        parser.error(str(error))
    asked.out.mkdir(parents=True, exist_ok=True)
    first, _, last = asked.seeds.partition("-")
    seeds = range(int(first), int(last or first) + 1)
    with multiprocessing.get_context("spawn").Pool(asked.jobs, maxtasksperchild=1) as pool:
        rows = []
        for row in pool.imap(partial(figures, asked.scenario, asked.set, asked.out), seeds, chunksize=1):
            print(json.dumps(row), flush=True)
            rows.append(row)
    for name in ("rounds_to_one_swarm", "loss_after_10", "loss_at_end"):
        values = [row[name] for row in rows if row[name] is not None]
        if not values:
            print(f"{name}: in none of {len(rows)} seeds")
            continue
        spread = f"median {median(values):.4f}, mean {fmean(values):.4f}, {min(values):.4f} to {max(values):.4f}"
        print(f"{name}: {spread}, {len(values)} of {len(rows)} seeds")
    print(f"honest bans: {sum(row['honest_bans'] for row in rows)}")
    print(f"broken promises: {[row['broken'] for row in rows if row['broken']]}")


def figures(path: Path, sets: list[str], out: Path, seed: int) -> dict[str, Any]:
    """Return one seed's figures."""
    disturbed = load_scenario(path, sets, seed=seed)
    played = hashlib.blake2b(disturbed.to_toml().encode(), digest_size=8).hexdigest()
    kept = out / f"{seed}-{played}.json"
    if not kept.exists():
        calm = load_scenario(path, [*sets, "events=[]", "assert.recovers_within=1"], seed=seed)
        ends_s = max(event.at_s + (getattr(event, "for_s", None) or 0.0) for event in disturbed.scenario.events)
        told = lived(disturbed, ends_s) | {"calm": lived(calm, ends_s)}
        kept.with_suffix(".new").write_text(json.dumps({"seed": seed, **told}))
        kept.with_suffix(".new").replace(kept)
    told = json.loads(kept.read_text())
    curve, without = ({int(at): loss for at, loss in each["curve"].items()} for each in (told, told["calm"]))
    after = min((at for at in curve if at >= told["round"] + AFTER), default=None)
    return {
        "seed": seed,
        "rounds_to_one_swarm": max(told["moved"]) - told["round"] if len(told["moved"]) == told["nodes"] else None,
        "loss_after_10": None if after is None else curve[after] / without[after],
        "loss_at_end": curve[max(curve)] / without[max(without)],
        "honest_bans": told["honest_bans"],
        "broken": told["broken"],
    }


def lived(loaded: LoadedScenario, ends_s: float) -> dict[str, Any]:
    """Play a scenario. `round`: the newest one of any node at `ends_s`, or -1; `moved`: of each node, the first after
    that in which it averaged with other regions."""
    with TemporaryDirectory() as folder:
        course = play(loaded, folder=Path(folder) / "nodes")
        result = judged(course)
        logs = {name: (Path(folder) / "nodes" / name / "events.jsonl").read_text() for name in course.members}
    losses: dict[int, list[float]] = {}
    for member in course.honest:
        for _, at, loss in member.told.losses:
            losses.setdefault(at, []).append(loss)
    moved = []
    reached = max((at for member in course.honest for when, at in member.told.closed if when <= ends_s), default=-1)
    for name in (member.name for member in course.honest):
        turns = [event for event in map(json.loads, logs[name].splitlines()) if event["event"] == "regions"]
        moved += [turn["round"] for turn in turns if turn["moved"] and turn["round"] > reached and turn["models"]][:1]
    return {
        "round": reached,
        "moved": moved,
        "curve": {at: fmean(values) for at, values in sorted(losses.items())},
        "honest_bans": result.honest_bans,
        "broken": list(result.broken),
        "nodes": len(course.honest),
    }


if __name__ == "__main__":
    with ended_in_a_line():
        main()
