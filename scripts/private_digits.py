"""Eight nodes that train the digits privately, together and each alone: the same shards, epsilon and delta.

    python scripts/private_digits.py                         # epsilon 2, 4 and 8 at delta 1e-4, five seeds
    python scripts/private_digits.py --epsilons 2 --seeds 0
    python scripts/private_digits.py --tune 4                # what suits either side best: SETTINGS was chosen so

Each node has an eighth of the training digits (179 or 180), the real trainer with the privatizer `example`, and a
ledger and a budget of its own on the disk. Together they average by a strategy in lockstep, every payload at once. Each
is trained until its budget refuses the next step or its rounds are over. Either side has the rate, steps and learning
rate that suit itself, as its user would choose them. They are chosen by half of the 359 held-out digits and by seeds of
their own; figures are of the other half. Choosing looks at many private models, which no epsilon here counts.
One JSON line an epsilon and seed.
"""

import argparse
import itertools
import json
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path
from statistics import fmean
from typing import Final

import torch
from torch import nn

from node.bench.swarm.lockstep import member_of, play_rounds
from node.config.privacy_section import PrivacyConfig
from node.privacy.budget import PrivacyBudget
from node.privacy.ledger import PrivacyLedger
from node.system.script_end import ended_in_a_line
from p2ptrain.privacy.accounting import noise_for
from p2ptrain.sync import SYNC_STRATEGIES, SyncConfig
from p2ptrain.tasks import Shard
from p2ptrain.tasks.digits import Digits
from p2ptrain.training import TrainConfig, Trainer
from p2ptrain.training.private_training import PrivateTraining

NODES: Final = 8
DELTA: Final = 1e-4
CLIP: Final = 0.5


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How one node trains: its steps spend the whole budget."""

    rate: float
    steps: int
    learning_rate: float
    steps_a_round: int = 2
    """After so many the eight average; to one alone it is all one."""


@dataclass(frozen=True, kw_only=True)
class Sides:
    """What suits a node alone, and what suits eight together."""

    alone: Settings
    together: Settings


SETTINGS: Final = {
    2.0: Sides(
        alone=Settings(rate=1.0, steps=40, learning_rate=0.5), together=Settings(rate=0.5, steps=60, learning_rate=0.5)
    ),
    4.0: Sides(
        alone=Settings(rate=1.0, steps=40, learning_rate=1.0), together=Settings(rate=0.5, steps=60, learning_rate=0.5)
    ),
    8.0: Sides(
        alone=Settings(rate=1.0, steps=100, learning_rate=0.5),
        together=Settings(rate=0.5, steps=200, learning_rate=0.25),
    ),
}
"""The best for either side of what `--tune` tries; at 2 and 4 of fewer, with 20 to 60 steps (docs/benchmarks.md)."""

TRIED: Final = tuple(
    Settings(rate=rate, steps=steps, learning_rate=learning_rate)
    for (rate, steps), learning_rate in itertools.product(
        ((1.0, 20), (1.0, 40), (1.0, 100), (1.0, 200), (0.5, 60), (0.5, 200), (0.25, 100), (0.25, 200)),
        (0.25, 0.5, 1.0, 2.0, 4.0, 8.0),
    )
)
AVERAGED_MORE: Final = 3
"""The best so many of the eight's are tried with an average after each step, too."""
TUNING_SEEDS: Final = (100, 101)
TUNED_ALONE: Final = 3
"""Of the eight nodes: enough for a mean."""
TUNED_ON: Final = slice(0, 179)
"""Held-out digits that choose the settings."""
MEASURED_ON: Final = slice(179, None)
"""Those that the figures are of."""


def main() -> None:
    """Measure each epsilon with each seed, or look for settings."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epsilons", type=float, nargs="*", choices=[*SETTINGS], default=[*SETTINGS])
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2, 3, 4])
    parser.add_argument("--strategy", default="tracked_gossip")
    parser.add_argument("--tune", type=float, default=None, metavar="EPSILON", help="try settings for either side")
    given = parser.parse_args()
    if given.tune is not None and not given.tune > 0:
        parser.error("--tune must be above 0")
    if given.strategy not in SYNC_STRATEGIES.names():
        parser.error(f"--strategy must be one of {', '.join(SYNC_STRATEGIES.names())}")
    torch.set_num_threads(1)
    if given.tune is not None:
        tune(given.tune, given.strategy)
        return
    for epsilon, seed in itertools.product(given.epsilons, given.seeds):
        print(json.dumps({"epsilon": epsilon, "seed": seed, **play(epsilon, seed, given.strategy)}), flush=True)


def tune(epsilon: float, strategy: str) -> None:
    """Print what each of the settings gives either side, and at last the best of each."""
    apart = [(_tuned(epsilon, settings, "alone", strategy), settings) for settings in TRIED]
    joined = [(_tuned(epsilon, settings, "together", strategy), settings) for settings in TRIED]
    for _, settings in sorted(joined, key=itemgetter(0), reverse=True)[:AVERAGED_MORE]:
        oftener = replace(settings, steps_a_round=1)
        joined.append((_tuned(epsilon, oftener, "together", strategy), oftener))
    for side, found in (("alone", apart), ("together", joined)):
        accuracy, settings = max(found, key=itemgetter(0))
        print(json.dumps({"epsilon": epsilon, "best": side, **vars(settings), "accuracy": accuracy}), flush=True)


def _tuned(epsilon: float, settings: Settings, side: str, strategy: str) -> float:
    """Print and return the mean accuracy of a side over the seeds that choose."""
    found = round(
        fmean(
            accuracy
            for seed in TUNING_SEEDS
            for accuracy in (
                alone(epsilon, settings, seed, TUNED_ON, count=TUNED_ALONE)
                if side == "alone"
                else together(epsilon, settings, seed, TUNED_ON, strategy)
            )
        ),
        3,
    )
    print(json.dumps({"epsilon": epsilon, **vars(settings), side: found}), flush=True)
    return found


def play(epsilon: float, seed: int, strategy: str = "tracked_gossip", *, lone: int = NODES) -> dict[str, float]:
    """Return the accuracies of so many of the eight nodes alone, and of all together."""
    sides = SETTINGS[epsilon]
    by_themselves = alone(epsilon, sides.alone, seed, MEASURED_ON, count=lone)
    joined = together(epsilon, sides.together, seed, MEASURED_ON, strategy)
    return {
        "alone": round(fmean(by_themselves), 3),
        "best_alone": round(max(by_themselves), 3),
        "together": round(fmean(joined), 3),
        "worst_together": round(min(joined), 3),
        "gain": round(fmean(joined) - fmean(by_themselves), 3),
        "gain_over_best": round(fmean(joined) - max(by_themselves), 3),
    }


def alone(epsilon: float, settings: Settings, seed: int, digits: slice, *, count: int = NODES) -> list[float]:
    """Train so many of the eight nodes, each by itself, and return which part of these held-out digits each names
    rightly."""
    with private_nodes(epsilon, settings, seed=seed, count=count) as nodes:
        for node in nodes:
            while node.trainer.global_step < settings.steps:
                node.trainer.step()
            node.check_spent(epsilon)
        return [accuracy(node.trainer.model_with(), digits) for node in nodes]


def together(epsilon: float, settings: Settings, seed: int, digits: slice, strategy: str) -> list[float]:
    """Train the eight together, and return the same of each one's averaged model."""
    with private_nodes(epsilon, settings, seed=seed) as nodes:
        members = [
            member_of(node.trainer, SyncConfig(strategy=strategy), index=index, steps=settings.steps_a_round)
            for index, node in enumerate(nodes)
        ]
        play_rounds(members, settings.steps // settings.steps_a_round)
        for node in nodes:
            node.check_spent(epsilon)
        return [accuracy(member.trainer.model_with(member.own.anchor_d), digits) for member in members]


@torch.no_grad()
def accuracy(model: nn.Module, digits: slice) -> float:
    """Return which part of these held-out digits the model names rightly."""
    images, labels = (each[digits] for each in Digits().held_out)
    return float((model(images).argmax(dim=1) == labels).float().mean())


@dataclass(frozen=True)
class PrivateNode:
    """What trains on a shard, and what it may spend."""

    trainer: Trainer
    budget: PrivacyBudget

    def check_spent(self, epsilon: float) -> None:
        """Raise AssertionError where the ledger has more than this, or where a good part of it is left."""
        assert 0.95 * epsilon < self.budget.epsilon <= epsilon, f"{self.budget.epsilon} of {epsilon} are spent"


def noise_of(epsilon: float, settings: Settings) -> float:
    """Return the noise with which the steps spend the budget."""
    return noise_for(epsilon, DELTA, rate=settings.rate, steps=settings.steps)


@contextmanager
def private_nodes(epsilon: float, settings: Settings, *, seed: int, count: int = NODES) -> Iterator[list[PrivateNode]]:
    """Yield so many of the eight nodes, with their ledgers in a folder of their own."""
    privacy = PrivacyConfig(
        privatizer="example",
        noise=noise_of(epsilon, settings),
        clip=CLIP,
        rate=settings.rate,
        delta=DELTA,
        epsilon=epsilon,
    )
    config = TrainConfig(
        device="cpu",
        threads=1,
        seed=seed,
        optimizer="sgd",
        learning_rate=settings.learning_rate,
        clip_norm=0.0,
        warmup_steps=0,
        rounds=settings.steps // settings.steps_a_round,
        inner_steps=settings.steps_a_round,
    )
    with tempfile.TemporaryDirectory() as folder, ExitStack() as ledgers:
        found = []
        for index in range(count):
            ledger = PrivacyLedger(Path(folder) / f"{index}.jsonl")
            ledgers.callback(ledger.close)
            budget = PrivacyBudget(privacy, ledger)
            protection = PrivateTraining(privatizer=privacy.find(), rate=privacy.rate, spend=budget.spend)
            trainer = Trainer(Digits(), config, Shard(index=index, count=NODES), privacy=protection)
            trainer.ask_ahead(settings.steps)
            found.append(PrivateNode(trainer, budget))
        yield found


if __name__ == "__main__":
    with ended_in_a_line():
        main()
