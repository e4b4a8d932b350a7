"""What liars cost between regions: byte-lm pico in the simulation, attack by attack.

    python scripts/region_attacks.py --layout bridges --out DIR     # two regions of five, one liar in each
    python scripts/region_attacks.py --layout region --out DIR      # four regions of four, one of them lies

One JSON line an attack: the honest nodes' held-out loss over that of a run in which the liars are not there, the
worst node's likewise, bans of honest nodes, and broken promises. Rows that --out has are not played again.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

from node.simulation.scenario_file import load_scenario
from node.simulation.twin import play
from node.simulation.verdict import judged
from node.system.errors import UsageError
from p2ptrain import attacks

ROUNDS = 48
BRIDGES, REGION = "bridges", "region"
ABSENT = "absent"


def main() -> None:
    """Play what is missing, and print a line an attack."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layout", choices=[BRIDGES, REGION], required=True)
    parser.add_argument("--attacks", nargs="*", default=attacks.names())
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    without = figures(asked.layout, ABSENT, asked.seed, asked.out)
    for name in asked.attacks:
        try:
            row = figures(asked.layout, name, asked.seed, asked.out)
        except UsageError as error:  # what a node cannot do, as it has one chain for all
            print(json.dumps({"attack": name, "not_a_nodes": str(error)}), flush=True)
            continue
        told = {
            "attack": name,
            "loss": round(row["loss"] / without["loss"], 4),
            "worst": round(row["worst"] / without["worst"], 4),
            "moves": row["moves"],
            "honest_bans": row["honest_bans"],
            "broken": row["broken"],
        }
        print(json.dumps(told), flush=True)


def figures(layout: str, attack: str, seed: int, out: Path) -> dict[str, Any]:
    """Return what one run came to. `moves`: the fewest averagings with other regions of an honest node."""
    kept = out / f"{layout}-{attack}-{seed}.json"
    if not kept.exists():
        path = out / f"{layout}-{attack}-{seed}.toml"
        path.write_text(scenario_text(layout, attack), encoding="utf-8")
        with TemporaryDirectory() as folder:
            course = play(load_scenario(path, seed=seed), folder=Path(folder) / "nodes")
            logs = [Path(folder) / "nodes" / member.name / "events.jsonl" for member in course.honest]
            events = [[json.loads(line) for line in log.read_text().splitlines()] for log in logs]
        result, losses = judged(course), [member.told.losses[-1][2] for member in course.honest]
        moves = [sum(event["event"] == "regions" and event["moved"] for event in each) for each in events]
        told = {
            "loss": fmean(losses),
            "worst": max(losses),
            "moves": min(moves),
            "honest_bans": result.honest_bans,
            "broken": list(result.broken),
        }
        kept.with_suffix(".new").write_text(json.dumps(told))
        kept.with_suffix(".new").replace(kept)
    return dict(json.loads(kept.read_text()))


def scenario_text(layout: str, attack: str) -> str:
    """Return the scenario. All have the data that they would have with the liars there."""
    labels = ["east", "west"] if layout == BRIDGES else ["north", "east", "south", "west"]
    each = 5 if layout == BRIDGES else 4
    lying = dict.fromkeys(labels, 1) if layout == BRIDGES else {labels[-1]: each}
    groups = "".join(_groups(labels, each, lying, absent=attack == ABSENT))
    lie = "" if attack == ABSENT else f'[attack]\nname = "{attack}"\n'
    return f"""
until_s = 3600.0

[task]
name = "byte-lm"
size = "pico"

[sync]
regions = {labels}

[train]
rounds = {ROUNDS}
inner_steps = 10
batch_size = 4
warmup_steps = 5
eval_every = {ROUNDS}

{lie}{groups}
[links.site]
up = "1 Gbit/s"
down = "1 Gbit/s"

[devices.server]
step_s = 0.2
sigma = 0.05

[assert]
no_honest_ban = true
all_finish = true
"""


def _groups(labels: list[str], each: int, lying: dict[str, int], *, absent: bool) -> Iterator[str]:
    shard = 0
    for label in labels:
        for number in range(each):
            lies = number >= each - lying.get(label, 0)
            if not (lies and absent):
                yield _group(label, number, shard, each * len(labels), lies=lies)
            shard += 1


def _group(label: str, number: int, shard: int, shards: int, *, lies: bool) -> str:
    return f"""
[[nodes]]
name = "{label}-{number}"
count = 1
link = "site"
device = "server"
lies = {str(lies).lower()}
settings = {{ node = {{ region = "{label}", shard_index = {shard}, shard_count = {shards} }} }}
"""


if __name__ == "__main__":
    main()
