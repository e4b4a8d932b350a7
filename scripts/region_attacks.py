"""What liars cost between regions: byte-lm pico in the simulation, attack by attack.

    python scripts/region_attacks.py --layout bridges --out DIR     # two regions of five, one liar in each
    python scripts/region_attacks.py --layout region --out DIR      # four regions of four, one of them lies

One JSON line an attack: of each of --seeds the honest nodes' held-out loss over that of a run in which the liars are
not there, and the worst node's likewise; the fewest averagings of a node, bans of honest nodes, and broken promises.
Runs that --out has are not played again.
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
from node.sweep.seeds import parse_seeds
from node.system.errors import UsageError
from node.system.script_end import ended_in_a_line
from p2ptrain import attacks

BRIDGES, REGION = "bridges", "region"
ABSENT = "absent"


def main() -> None:
    """Play what is missing, and print a line an attack."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layout", choices=[BRIDGES, REGION], required=True)
    parser.add_argument("--attacks", nargs="*", default=attacks.names())
    parser.add_argument("--seeds", default="0-2")
    parser.add_argument("--rounds", type=int, default=48)
    parser.add_argument("--inner-steps", type=int, default=10)
    parser.add_argument("--every", type=int, default=8, help="rounds between two averagings of regions")
    parser.add_argument("--momentum", type=float, default=0.0, help="of the regions' mean (sync.region_momentum)")
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    if not 0 <= asked.momentum < 1:
        parser.error("--momentum is from 0 to below 1")
    asked.out.mkdir(parents=True, exist_ok=True)
    try:
        seeds = parse_seeds(asked.seeds)
    except UsageError as error:
        parser.error(str(error))
    without = [figures(asked, ABSENT, seed) for seed in seeds]
    for name in asked.attacks:
        try:
            rows = [figures(asked, name, seed) for seed in seeds]
        except UsageError as error:  # what a node cannot do, as it has one chain for all
            print(json.dumps({"attack": name, "not_a_nodes": str(error)}), flush=True)
            continue
        told = {
            "attack": name,
            "loss": _ratios(rows, without, "loss"),
            "worst": _ratios(rows, without, "worst"),
            "moves": min(row["moves"] for row in rows),
            "honest_bans": sum(row["honest_bans"] for row in rows),
            "broken": [promise for row in rows for promise in row["broken"]],
        }
        print(json.dumps(told), flush=True)


def _ratios(rows: list[dict[str, Any]], without: list[dict[str, Any]], what: str) -> list[float]:
    return [round(row[what] / calm[what], 4) for row, calm in zip(rows, without, strict=True)]


def figures(asked: argparse.Namespace, attack: str, seed: int) -> dict[str, Any]:
    """Return what one run came to. `moves`: the fewest averagings with other regions of an honest node."""
    length = f"{asked.rounds}x{asked.inner_steps}-{asked.every}" + (f"-{asked.momentum}" if asked.momentum else "")
    kept = asked.out / f"{asked.layout}-{attack}-{length}-{seed}.json"
    if not kept.exists():
        path = kept.with_suffix(".toml")
        path.write_text(scenario_text(asked, attack, seed), encoding="utf-8")
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


def scenario_text(asked: argparse.Namespace, attack: str, seed: int) -> str:
    """Return the scenario. All have the data that they would have with the liars there. `seed` draws the initial model
    and the batches as well."""
    labels = ["east", "west"] if asked.layout == BRIDGES else ["north", "east", "south", "west"]
    each = 5 if asked.layout == BRIDGES else 4
    lying = dict.fromkeys(labels, 1) if asked.layout == BRIDGES else {labels[-1]: each}
    groups = "".join(_groups(labels, each, lying, absent=attack == ABSENT))
    lie = "" if attack == ABSENT else f'[attack]\nname = "{attack}"\n'
    return f"""
until_s = 3600.0

[task]
name = "byte-lm"
size = "pico"

[sync]
regions = {labels}
region_every = {asked.every}
region_momentum = {asked.momentum}

[train]
rounds = {asked.rounds}
seed = {seed}
inner_steps = {asked.inner_steps}
batch_size = 4
warmup_steps = 5
eval_every = {asked.rounds}

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
    with ended_in_a_line():
        main()
