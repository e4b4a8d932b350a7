"""How well a newcomer with few examples and layers of its own does at once, with a warm-up and without.

    python scripts/cold_start.py --seeds 0-4
    python scripts/cold_start.py --seeds 0-4 --local '6.*'      # only the last layer is each node's own

Eight nodes learn the digits, round by round without a network, each with a ninth of them and the last two layers its
own (--local). Then a newcomer takes the median of their models: its body is trained, and its own layers are those that
every run begins with. It has --examples digits: of all classes (`even`), or of four (`four`). Three rounds follow, in
which the newcomer trains as they do, and its body is averaged with theirs by their trimmed mean; what they take from it
is left out. Ways to begin:

- cold: with its first round.
- own: as many steps of its own layers on its own examples alone.
- warm: the same steps, half of each batch synthetic, by the members' class statistics; synthetic: all of it.
- epsilon 8, epsilon 2: warm, the statistics noised for that epsilon at delta 1e-4, in each member.
- liars: warm, and two of the eight lie alike: their statistics of a class are those of the next, of a crowd; liars in a
  mean: the same, and nothing is trimmed. extreme: they state the end of the range for all inputs; extreme in a mean.
- shared, shared warm: no layer is anybody's own; the whole model is warmed up (which a node does not offer).

One JSON line a run: the share of held-out digits named rightly after 0, 1 and 3 rounds, of its own classes and of all.
Then tables of medians over seeds, with the worst in brackets.
"""

import argparse
import json
import math
from collections.abc import Iterator
from statistics import median
from typing import Any, Final

import numpy as np
import torch
from torch import nn

from node.bench.lists import some_numbers
from node.bench.swarm.run_spec import RunSpec, Shape
from node.bench.swarm.simulation import Swarm
from node.config.schema import Config, from_raw
from node.system.script_end import ended_in_a_line
from p2ptrain.privacy.accounting import noise_for
from p2ptrain.privacy.secret_random import SecretRandom
from p2ptrain.tasks import Shard
from p2ptrain.tasks.base import Batch
from p2ptrain.tasks.digits import CLASSES, Digits, Indices
from p2ptrain.training import Trainer
from p2ptrain.training.warm_up import WarmUpTask
from p2ptrain.warm_up import ClassStatistics, parse_statistics, robust_statistics

MEMBERS: Final = 8
DELTA: Final = 1e-4
OWN_LAYERS: Final = "3.*,4.*,6.*"
ROUNDS: Final = (0, 1, 3)
"""After which the newcomer is tried."""
EPSILONS: Final = {"epsilon 8": 8.0, "epsilon 2": 2.0}
LIES: Final = {"liars": 2, "liars in a mean": 0, "extreme": 2, "extreme in a mean": 0}
"""By way, how many liars the newcomer expects."""
LIARS: Final = 2
WAYS: Final = ("cold", "own", "warm", "synthetic", *EPSILONS, *LIES, "shared", "shared warm")
CASES: Final = {"even": CLASSES, "four": 4}


class NinthOfDigits(Digits):
    """Members have a ninth of the digits each; the newcomer, of index MEMBERS, has `examples` of the last ninth, of so
    many classes."""

    def __init__(self, examples: int, classes: int, seed: int, alpha: float) -> None:
        super().__init__("dirichlet", alpha)
        rng = np.random.default_rng([seed, 0xC01D])
        self.own_classes = np.sort(rng.choice(CLASSES, classes, replace=False))
        mine = rng.permutation(super().examples(Shard(index=MEMBERS, count=MEMBERS + 1)))
        there = np.isin(self.train.labels.numpy()[mine], self.own_classes)
        self._mine = mine[there][:examples]

    def examples(self, shard: Shard) -> Indices:
        """Indices into `train` of the shard's examples."""
        if shard.index == MEMBERS:
            return self._mine
        return super().examples(Shard(index=shard.index, count=MEMBERS + 1))


def config_of(seed: int, asked: argparse.Namespace, *, head: bool) -> Config:
    """Return everybody's settings."""
    train = {"rounds": asked.rounds + max(ROUNDS), "inner_steps": asked.inner_steps, "seed": seed, "device": "cpu"}
    return from_raw(
        {
            "task": {"name": "digits"},
            "train": {**train, "local": asked.local.split(",") if head else []},
            "sync": {"f": 2},
        }
    )


def statistics_of(task: Digits, way: str) -> list[ClassStatistics]:
    """Return what the members state, as a newcomer reads it."""
    found = []
    noise = noise_for(EPSILONS[way], DELTA, rate=1.0, steps=1) if way in EPSILONS else None
    for index in range(MEMBERS):
        sums = WarmUpTask(task, Shard(index=index, count=MEMBERS)).sums()
        stated = sums.statistics() if noise is None else sums.noised(noise, SecretRandom())
        if way in LIES and index >= MEMBERS - LIARS:
            stated = _lie(stated, extreme=way.startswith("extreme"))
        shape = stated.means_kd.shape
        found.append(parse_statistics(stated.encode(), classes=shape[0], coordinates=shape[1]))
    return found


def _lie(stated: ClassStatistics, *, extreme: bool) -> ClassStatistics:
    counts_k = torch.full_like(stated.counts_k, 1e9)
    if extreme:
        ones_kd = torch.ones_like(stated.means_kd)
        return ClassStatistics(counts_k=counts_k, means_kd=ones_kd, variances_kd=ones_kd)
    means_kd, variances_kd = stated.means_kd.roll(1, 0), stated.variances_kd.roll(1, 0)
    return ClassStatistics(counts_k=counts_k, means_kd=means_kd, variances_kd=variances_kd)


def warm_up(trainer: Trainer, way: str, asked: argparse.Namespace) -> None:
    """Train the newcomer before its first round."""
    if way in ("cold", "shared"):
        return
    if way == "own":
        size, seed = trainer.config.batch_size, trainer.data_seed
        own = (trainer.task.train_batch(it, seed=seed ^ 1, shard=trainer.shard, size=size) for it in range(asked.steps))
        trainer.train_local(own, asked.rate)
        return
    shared = robust_statistics(statistics_of(trainer.task, way), f=LIES.get(way, LIARS))
    assert shared is not None, "all members have all digits"
    batches = WarmUpTask(trainer.task, trainer.shard).batches(
        shared,
        steps=asked.steps,
        size=trainer.config.batch_size,
        own_share=0.0 if way == "synthetic" else 0.5,
        seed=trainer.data_seed,
    )
    if way == "shared warm":
        _train_whole(trainer, batches, asked.rate)
    else:
        trainer.train_local(batches, asked.rate)


def _train_whole(trainer: Trainer, batches: Iterator[Batch], rate: float) -> None:
    model = trainer.model_with()
    model.requires_grad_(True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.0)
    for batch in batches:
        optimizer.zero_grad()
        trainer.task.loss(model, batch).backward()
        optimizer.step()
    trainer.load_vector(torch.cat([it.detach().reshape(-1) for it in model.parameters()]))


def rows(seed: int, asked: argparse.Namespace, ways: list[str], cases: list[str]) -> Iterator[dict[str, Any]]:
    """Yield the figures of each way in each case, after one training of the members."""
    tasks = {case: NinthOfDigits(asked.examples, CASES[case], seed, asked.alpha) for case in cases}
    for head in (True, False):
        those = [way for way in ways if way.startswith("shared") != head]
        if not those:
            continue
        config = config_of(seed, asked, head=head)
        spec = RunSpec(config=config, shape=Shape(nodes=MEMBERS, degree=MEMBERS - 1))
        swarm = Swarm(spec, tasks[cases[0]])  # the members have the same digits in all
        for _ in range(asked.rounds):
            swarm.round()
        after = [_anchors(swarm)]  # by round, fp32 (members, d)
        for _ in range(max(ROUNDS)):
            swarm.round()
            after.append(_anchors(swarm))
        for case in cases:
            for way in those:
                yield {"case": case, "way": way, "seed": seed, **_newcomer(tasks[case], way, config, after, asked)}


def _anchors(swarm: Swarm) -> torch.Tensor:
    return torch.stack([node.anchor_d.clone() for node in swarm.nodes])


def _newcomer(
    task: NinthOfDigits, way: str, config: Config, after: list[torch.Tensor], asked: argparse.Namespace
) -> dict[str, float]:
    trainer = Trainer(task, config.train, Shard(index=MEMBERS, count=MEMBERS + 1))
    trainer.global_step = asked.rounds * config.train.inner_steps
    trainer.load_vector(after[0].median(0).values)
    warm_up(trainer, way, asked)
    told = {}
    for round_, others_nd in enumerate(after):
        if round_:
            for _ in range(config.train.inner_steps):
                trainer.step()
            models_nd = torch.cat([others_nd, trainer.vector().unsqueeze(0)])
            trainer.load_vector(models_nd.sort(0).values[2:-2].mean(0))
        if round_ in ROUNDS:
            own, every = _accuracies(trainer.model_with(), task)
            told |= {f"own_{round_}": own, f"all_{round_}": every}
    return told


@torch.no_grad()
def _accuracies(model: nn.Module, task: NinthOfDigits) -> tuple[float, float]:
    right_n = (model(task.held_out.images).argmax(1) == task.held_out.labels).numpy()
    mine_n = np.isin(task.held_out.labels.numpy(), task.own_classes)
    return 100 * float(right_n[mine_n].mean()), 100 * float(right_n.mean())


def main() -> None:
    """Measure every way, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=some_numbers, default="0-4", help="such as 0-4")
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--examples", type=int, default=40)
    parser.add_argument("--alpha", type=float, default=100.0, help="concentration of the members' Dirichlet draws")
    parser.add_argument("--local", default=OWN_LAYERS, help="train.local, with commas between patterns")
    parser.add_argument("--rounds", type=int, default=15, help="of the members before it comes")
    parser.add_argument("--inner-steps", type=int, default=20)
    parser.add_argument("--steps", type=int, default=100, help="of the warm-up")
    parser.add_argument("--rate", type=float, default=0.01, help="of the warm-up")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    ways, cases = asked.ways.split(","), asked.cases.split(",")
    if unknown := (set(ways) - set(WAYS)) | (set(cases) - set(CASES)):
        parser.error(f"there is no {', '.join(sorted(unknown))}; there are: {', '.join((*WAYS, *CASES))}")
    found: list[dict[str, Any]] = []
    for seed in asked.seeds:
        for row in rows(seed, asked, ways, cases):
            found.append(row)
            print(json.dumps(row), flush=True)
    for case in cases:
        print(f"{case:5} {'':18}" + "".join(f"{f'{what} after {it}':>15}" for what in ("own", "all") for it in ROUNDS))
        for way in ways:
            of = [row for row in found if (row["case"], row["way"]) == (case, way)]
            cells = [f"{_words([row[f'{what}_{it}'] for row in of]):>15}" for what in ("own", "all") for it in ROUNDS]
            print(f"{case:5} {way:18}" + "".join(cells))


def _words(values: list[float]) -> str:
    return f"{median(values):.1f} ({min(values):.1f})" if values else str(math.nan)


if __name__ == "__main__":
    with ended_in_a_line():
        main()
