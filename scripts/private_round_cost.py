"""What the end of a private round takes of a loop of one's own (`p2ptrain.join`), over that of a plain one.

    python scripts/private_round_cost.py
    python scripts/private_round_cost.py --turns 40 --parameters 1000000

One JSON line a size: medians in milliseconds of the processor, in one thread, and nanoseconds a parameter. A plain
round ends with a copy of the parameters; a private one is clipped, noised and set in the live model as well.
"""

import argparse
import json
import statistics
import time

import torch
from torch import nn

from node.system.script_end import ended_in_a_line
from p2ptrain import privacy
from p2ptrain.tasks import Shard
from p2ptrain.training import TrainConfig, UserModel
from p2ptrain.training.private_training import PrivateTraining

WIDTH = 1000
"""Of a layer: a model of as many layers as have the parameters asked for."""


def main() -> None:
    """Measure each size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=9, help="rounds of each kind, after one to warm up")
    parser.add_argument("--parameters", type=int, nargs="+", default=[10_000, 1_000_000, 10_000_000])
    given = parser.parse_args()
    if min(given.turns, *given.parameters) < 1:
        parser.error("--turns and --parameters must be 1 or more")
    torch.set_num_threads(1)
    for wanted in given.parameters:
        learner, private = learner_of(wanted), learner_of(wanted)
        privatizer = privacy.get("update", noise=1.0, clip=1.0)
        private.protect(PrivateTraining(privatizer=privatizer), private.vector())
        took = {"plain": median_s(learner, given.turns), "private": median_s(private, given.turns)}
        each = (took["private"] - took["plain"]) / learner.numel
        rounded = {kind: round(1e3 * seconds, 2) for kind, seconds in took.items()}
        print(json.dumps({"parameters": learner.numel, "ms": rounded, "ns_each": round(1e9 * each, 1)}), flush=True)


def learner_of(parameters: int) -> UserModel:
    """Return a model of linear layers with about so many parameters, as a loop gives it to `join`."""
    width = min(WIDTH, int(parameters**0.5))
    layers = [nn.Linear(width, width, bias=False) for _ in range(max(1, parameters // width**2))]
    return UserModel(nn.Sequential(*layers), None, TrainConfig(), Shard(), data_seed=0)


def median_s(learner: UserModel, turns: int) -> float:
    """Median seconds from a round's last step to its published copy, the begin of the next one included."""
    took = []
    for _ in range(1 + turns):
        with torch.no_grad():
            for parameter in learner.parameters:
                parameter.add_(1e-3)
        began = time.process_time()
        learner.end_round()
        learner.vector()
        learner.begin_round()
        took.append(time.process_time() - began)
    return statistics.median(took[1:])


if __name__ == "__main__":
    with ended_in_a_line():
        main()
