"""What regions lose to a flat swarm by averaging seldom, and by nothing else: exact means in fp32, f = 0, no delay.

    python scripts/region_ablation.py --every 1 2 4 8 --out DIR
    python scripts/region_ablation.py --every 8 --momentum 0.3 --out DIR      # Nesterov's step on the regions' mean
    python scripts/region_ablation.py --every 4 --codec int4 --out DIR        # regions' models travel in int4

Eight nodes of byte-lm, alike shards. Each round a region's nodes take the mean of their models, and every --every
rounds, and after the last one, the regions take theirs. --every 0: never. --every 1 is the flat swarm. --first-every is
the period in the first --first rounds.

One JSON line a run: by rounds, the mean of the regions' held-out losses and that of the mean of their models, both
after the round; and at each turn both before it, how far the first two regions are from each other, the first from the
initial model, and what each codec loses of that difference (Euclidean norms). Runs that --out has are not played again.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from node.system.script_end import ended_in_a_line
from p2ptrain import compress
from p2ptrain.sync.regional_momentum import RegionalMomentum
from p2ptrain.tasks import Shard
from p2ptrain.tasks.byte_lm import SIZES, ByteLM
from p2ptrain.training import TrainConfig, Trainer

NODES = 8
CODECS = ("int8", "int4")


class AveragedRegions:
    """Nodes that close their rounds at the same time, by exact means."""

    def __init__(self, asked: argparse.Namespace, seed: int) -> None:
        train = TrainConfig(
            rounds=asked.rounds,
            inner_steps=asked.inner_steps,
            batch_size=asked.batch_size,
            seed=seed,
            threads=1,
            device="cpu",
        )
        task = ByteLM(asked.size)
        self._inner_steps, self._codec = asked.inner_steps, asked.codec
        self._trainers = [Trainer(task, train, Shard(index=each, count=NODES)) for each in range(NODES)]
        self._genesis_d = self._trainers[0].vector()
        self._groups = [range(first, NODES, asked.regions) for first in range(asked.regions)]
        self.models_rd = torch.stack([self._genesis_d] * asked.regions)
        """The regions' models (r, d)."""
        self._beyond = RegionalMomentum(asked.momentum, asked.rounds)

    def train(self) -> None:
        """Take a round's steps, and the mean of each region."""
        for trainer in self._trainers:
            for _ in range(self._inner_steps):
                trainer.step()
        for place, group in enumerate(self._groups):
            self.models_rd[place] = torch.stack([self._trainers[node].vector() for node in group]).mean(0)

    def move(self, round: int) -> None:
        """Move the regions to their mean, or beyond it."""
        published_rd = torch.stack([self._read(model_d, self._codec) for model_d in self.models_rd])
        shift_d = published_rd.mean(0) - published_rd[0]
        self._beyond.go_beyond_(shift_d, published_rd[0], round)
        self.models_rd += published_rd[0] + shift_d - published_rd

    def take_up(self) -> None:
        """Give each node its region's model."""
        for place, group in enumerate(self._groups):
            for node in group:
                self._trainers[node].correct(self.models_rd[place] - self._trainers[node].vector())

    def losses(self) -> tuple[float, float]:
        """Return the mean of the regions' held-out losses, and the loss of the mean of their models."""
        each = [self._trainers[0].evaluate(model_d) for model_d in self.models_rd]
        return fmean(each), self._trainers[0].evaluate(self.models_rd.mean(0))

    def distances(self) -> dict[str, float]:
        """Return how far the regions are from each other and from the initial model, and what codecs lose of that."""
        first_d, last_d = self.models_rd[0], self.models_rd[-1]
        apart = {"apart": float(torch.dist(first_d, last_d)), "moved": float(torch.dist(first_d, self._genesis_d))}
        return apart | {codec: float(torch.dist(self._read(first_d, codec), first_d)) for codec in CODECS}

    def _read(self, model_d: torch.Tensor, codec: str) -> torch.Tensor:
        """A model as others have it."""
        if codec == "none":
            return model_d.clone()
        coder = compress.get(codec)
        return coder.decode(coder.encode(model_d - self._genesis_d), model_d.numel()) + self._genesis_d


def main() -> None:
    """Play what is missing, and print a line a run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=[*SIZES], default="nano")
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=48)
    parser.add_argument("--inner-steps", type=int, default=8)
    parser.add_argument("--eval-every", type=int, default=8)
    parser.add_argument("--regions", type=int, default=2)
    parser.add_argument("--every", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--first-every", type=int, default=1)
    parser.add_argument("--momentum", type=float, default=0.0)
    parser.add_argument("--codec", choices=["none", *CODECS], default="none")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    if not 0 <= asked.momentum < 1:
        parser.error("--momentum is from 0 to below 1")
    counts = ("batch_size", "rounds", "inner_steps", "eval_every", "regions", "first_every")
    if min(asked.first, *asked.every) < 0 or any(getattr(asked, name) < 1 for name in counts):
        parser.error("--every and --first are 0 or more, all other counts 1 or more")
    asked.out.mkdir(parents=True, exist_ok=True)
    for every in asked.every:
        for seed in asked.seeds:
            print(json.dumps(curve(asked, every, seed)), flush=True)


def turns(asked: argparse.Namespace, every: int) -> Sequence[int]:
    """Return the rounds after which regions take their mean."""
    if every == 0:
        return []
    periods = [asked.first_every if round_ < asked.first else every for round_ in range(asked.rounds)]
    last = asked.rounds - 1
    return [round_ for round_, period in enumerate(periods) if (round_ + 1) % period == 0 or round_ == last]


def curve(asked: argparse.Namespace, every: int, seed: int) -> dict[str, Any]:
    """Return one run's figures."""
    run = {name: value for name, value in vars(asked).items() if name not in ("out", "every", "seeds", "eval_every")}
    kept = asked.out / f"{'-'.join(str(value) for value in run.values())}-{every}-{seed}.json"
    if not kept.exists():
        swarm, at_turns = AveragedRegions(asked, seed), set(turns(asked, every))
        losses: dict[int, tuple[float, float]] = {}
        before: dict[int, dict[str, Any]] = {}
        for number in range(asked.rounds):
            swarm.train()
            told = (number + 1) % asked.eval_every == 0 or number == asked.rounds - 1
            if number in at_turns:
                if told:
                    before[number + 1] = {"losses": swarm.losses(), **swarm.distances()}
                swarm.move(number)
            swarm.take_up()
            if told:
                losses[number + 1] = swarm.losses()
        kept.write_text(json.dumps({**run, "every": every, "seed": seed, "losses": losses, "before": before}))
    return dict(json.loads(kept.read_text()))


if __name__ == "__main__":
    with ended_in_a_line():
        main()
