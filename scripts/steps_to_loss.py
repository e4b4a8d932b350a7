"""Count the steps to a held-out loss: simulated swarms of the race's hosts (`p2ptrain bench race`), without its clock.

    python scripts/steps_to_loss.py [--synchronous] [--inner-steps 3] [--late-steps 1] [--to 2.2,2.0,1.9]
        [--set train.optimizer=muon] [--set train.learning_rate=2.4e-2] ...

Four nodes in one process, byte-lm nano, 400 steps of batch 8 each, with the settings of configs/local.toml under those
given. --synchronous: the exact mean gradient of all at every step, which is what DistributedDataParallel computes.
Prints a JSON line. It chose the settings of the contestants with Muon.
"""

import argparse
import json
from itertools import pairwise
from typing import Any

from node.bench.race.contestants import LOCAL
from node.bench.race.spec import RaceSpec
from node.bench.swarm.measure import measure
from node.bench.swarm.run_spec import RunSpec, Shape, baseline
from node.config.schema import from_raw
from node.config.toml_source import parse_set
from node.system.script_end import ended_in_a_line

STEPS_BETWEEN = 21
"""Steps between two evaluations, about: a multiple of every small number of inner steps."""


def steps_to(curve: list[tuple[int, float, float | None]], loss: float) -> int | None:
    """Return the first step at which the curve is at `loss`, on the line between two evaluations."""
    points = [(step, found) for step, _, found in curve if found is not None]
    for (before, higher), (after, lower) in pairwise(points):
        if lower <= loss < higher:
            return round(before + (after - before) * (higher - loss) / (higher - lower))
    return None


def recipe(given: argparse.Namespace) -> RunSpec:
    """Return the run that is asked for."""
    spec, every = RaceSpec(hosts=4, steps=400), max(1, STEPS_BETWEEN // given.inner_steps)
    raw: dict[str, dict[str, Any]] = {
        "task": {"name": "byte-lm", "size": spec.size},
        "train": {
            "rounds": -(-spec.steps // given.inner_steps),
            "inner_steps": given.inner_steps,
            "batch_size": spec.batch,
            "learning_rate": spec.learning_rate,
            "warmup_steps": spec.warmup_steps,
            "seed": given.seed,
            "threads": 1,
            "eval_examples": spec.eval_examples,
            "eval_every": every,
        },
        "sync": dict(LOCAL),
    }
    for text in given.set:
        section, key, value = parse_set(text)
        raw.setdefault(section, {})[key] = value
    run = RunSpec(
        config=from_raw(raw), shape=Shape(nodes=spec.hosts, degree=spec.hosts - 1, late_steps=given.late_steps)
    )
    return baseline(run, "synchronous") if given.synchronous else run


def main() -> None:
    """Run it, and print its line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--synchronous", action="store_true")
    parser.add_argument("--inner-steps", type=int, default=3)
    parser.add_argument("--late-steps", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--to", default="2.2,2.0,1.9")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    given = parser.parse_args()
    row = measure(recipe(given))
    curve: Any = row["curve"]
    found = {text: steps_to(curve, float(text)) for text in given.to.split(",")}
    print(json.dumps({"steps to": found, "last loss": curve[-1][2], "settings": given.set}))


if __name__ == "__main__":
    with ended_in_a_line():
        main()
