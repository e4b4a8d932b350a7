"""Eight nodes that train the digits privately, together and each alone: the same shards, noise, steps and rates.

    python scripts/private_digits.py                         # epsilon 2, 4 and 8 at delta 1e-4, three seeds
    python scripts/private_digits.py --epsilons 2 --seeds 0
    python scripts/private_digits.py --tune 4                # what suits a node alone, from which SETTINGS were chosen

Each node has an eighth of the training digits (179 or 180), the real trainer with the privatizer `example`, and a
ledger and a budget of its own on the disk. Together they average by a strategy in lockstep, every payload at once. Each
is trained until its budget refuses the next step or its rounds are over. One JSON line an epsilon and seed: accuracy on
the 359 held-out digits.
"""

import argparse
import itertools
import json
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Final

import torch

from node.bench.swarm.lockstep import LockstepMember, member_of, play_rounds
from node.config.privacy_section import PrivacyConfig
from node.privacy.budget import PrivacyBudget
from node.privacy.ledger import PrivacyLedger
from node.system.script_end import ended_in_a_line
from p2ptrain.privacy.accounting import noise_for
from p2ptrain.sync import SyncConfig
from p2ptrain.tasks import Shard
from p2ptrain.tasks.digits import Digits
from p2ptrain.training import TrainConfig, Trainer
from p2ptrain.training.private_training import PrivateTraining

NODES: Final = 8
DELTA: Final = 1e-4
CLIP: Final = 0.5
STEPS_A_ROUND: Final = 2


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How one node trains: its steps spend the whole budget."""

    rate: float
    steps: int
    learning_rate: float


SETTINGS: Final = {
    2.0: Settings(rate=1.0, steps=20, learning_rate=1.0),
    4.0: Settings(rate=1.0, steps=40, learning_rate=1.0),
    8.0: Settings(rate=1.0, steps=20, learning_rate=3.0),
}
"""What is best for a node alone of all that `--tune` tries: chosen for the side that is to be beaten."""

TUNED: Final = tuple(
    Settings(rate=rate, steps=steps, learning_rate=learning_rate)
    for (rate, steps), learning_rate in itertools.product(
        ((1.0, 10), (1.0, 20), (1.0, 40), (0.5, 60)), (0.1, 0.3, 1.0, 3.0)
    )
)


def main() -> None:
    """Measure each epsilon with each seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epsilons", type=float, nargs="*", choices=[*SETTINGS], default=[*SETTINGS])
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--strategy", default="tracked_gossip")
    parser.add_argument("--tune", type=float, default=None, metavar="EPSILON", help="try settings on two nodes alone")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.tune is not None:
        for settings in TUNED:
            with private_nodes(given.tune, settings, seed=100, count=2) as nodes:
                print(json.dumps({**vars(settings), "alone": round(fmean(alone(nodes)), 3)}), flush=True)
        return
    for epsilon, seed in itertools.product(given.epsilons, given.seeds):
        print(json.dumps({"epsilon": epsilon, "seed": seed, **play(epsilon, seed, given.strategy)}), flush=True)


def play(epsilon: float, seed: int, strategy: str = "tracked_gossip", *, lone: int = NODES) -> dict[str, float]:
    """Return the accuracies of so many of the eight nodes alone, of all together, and what was spent."""
    settings = SETTINGS[epsilon]
    with private_nodes(epsilon, settings, seed=seed, count=lone) as nodes:
        by_themselves = alone(nodes)
    with private_nodes(epsilon, settings, seed=seed) as nodes:
        members = [
            member_of(node.trainer, SyncConfig(strategy=strategy), index=index, steps=STEPS_A_ROUND)
            for index, node in enumerate(nodes)
        ]
        play_rounds(members, settings.steps // STEPS_A_ROUND)
        together = [accuracy(member) for member in members]
        spent = max(node.budget.epsilon for node in nodes)
    return {
        "noise": round(noise_of(epsilon, settings), 3),
        "spent": round(spent, 3),
        "alone": round(fmean(by_themselves), 3),
        "best_alone": round(max(by_themselves), 3),
        "together": round(fmean(together), 3),
        "worst_together": round(min(together), 3),
        "gain": round(fmean(together) - fmean(by_themselves), 3),
    }


@dataclass(frozen=True)
class PrivateNode:
    """What trains on a shard, and what it may spend."""

    trainer: Trainer
    budget: PrivacyBudget


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
        rounds=settings.steps // STEPS_A_ROUND,
        inner_steps=STEPS_A_ROUND,
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


def alone(nodes: list[PrivateNode]) -> list[float]:
    """Train each by itself, and return how many of the held-out digits it names rightly."""
    for node in nodes:
        while node.trainer.global_step < node.trainer.config.rounds * STEPS_A_ROUND:
            node.trainer.step()
    return [Digits().accuracy(node.trainer.model_with()) for node in nodes]


def accuracy(member: LockstepMember) -> float:
    """Return the accuracy of a member's averaged model."""
    return Digits().accuracy(member.trainer.model_with(member.own.anchor_d))


if __name__ == "__main__":
    with ended_in_a_line():
        main()
