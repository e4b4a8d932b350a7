"""Liars among members of unlike speed, whose short rounds are lengthened: attack by attack.

Five honest members take 20, 20, 10, 4 and 2 steps a round, and the sixth lies. Every payload arrives at once.
"""

from functools import cache

import pytest
import torch

from p2ptrain import attacks
from p2ptrain.attacks import VectorAttack
from p2ptrain.compress import PayloadError
from p2ptrain.sync import SyncConfig, SyncStrategy, build, liar_of
from p2ptrain.sync.model_averaging import ModelAveraging
from p2ptrain.tasks import Shard
from p2ptrain.tasks.digits import Digits
from p2ptrain.training import TrainConfig, Trainer

STEPS = (20, 20, 10, 4, 2)
ROUNDS = 12
CONFIG = TrainConfig(rounds=ROUNDS, inner_steps=20, batch_size=16, threads=1, warmup_steps=5, learning_rate=6e-3)
NAMES = attacks.names(VectorAttack)


class _Member:
    """A member: its trainer, what it sends by, and what it holds itself."""

    def __init__(self, index: int, steps: int, sync: SyncConfig, normalization: str, attack: str | None) -> None:
        self.name, self.steps = f"n{index}", steps
        self.trainer = Trainer(Digits(partition="dirichlet"), CONFIG, Shard(index=index, count=len(STEPS) + 1))
        self.own = build(sync, self.trainer.vector(), self.name, rounds=ROUNDS)
        assert isinstance(self.own, ModelAveraging)
        self.anchor_of = self.own
        self.sync: SyncStrategy = self.own
        if attack is not None:
            self.sync = liar_of(self.own, attacks.get(attack), generator=torch.Generator().manual_seed(0))
        self.factor = TrainConfig(step_normalization=normalization).normalization().factor(steps, 20)

    def train(self, round: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The lengthened model of a round, and by how much it is."""
        anchor_d = self.anchor_of.anchor_d.clone()
        for step in range(self.steps):
            self.trainer.step(round * 20 + step * 20 // self.steps)
        shift_d = (self.trainer.vector() - anchor_d) * (self.factor - 1)
        return self.trainer.vector() + shift_d, shift_d


@cache
def loss(rule: str, normalization: str, attack: str | None) -> float:
    """Of the honest members' mean model, held out."""
    sync = SyncConfig(aggregator=rule, f=1)
    members = [_Member(index, steps, sync, normalization, None) for index, steps in enumerate(STEPS)]
    if attack is not None:
        members.append(_Member(len(STEPS), 20, sync, normalization, attack))
    for member in members:
        for other in members:
            if other is not member:
                member.sync.track(other.name, None)
    for round in range(ROUNDS):
        trained = [member.train(round) for member in members]
        messages = [
            member.sync.encode(theta_d, round=round) for member, (theta_d, _) in zip(members, trained, strict=True)
        ]
        for member, (theta_d, shift_d) in zip(members, trained, strict=True):
            heard = {}
            for other, message in zip(members, messages, strict=True):
                if other is not member:
                    try:
                        member.sync.apply(other.name, message.codec, message.payload)
                        heard[other.name] = 0
                    except PayloadError:
                        member.sync.forget(other.name)
            result = member.sync.aggregate(theta_d, heard, round=round)
            member.trainer.correct(result.correction_d + shift_d)
    honest_nd = torch.stack([member.anchor_of.anchor_d for member in members[: len(STEPS)]])
    return members[0].trainer.evaluate(honest_nd.mean(0))


@pytest.mark.thorough
@pytest.mark.parametrize("rule", ["trimmed_mean", "clipped_gossip"])
@pytest.mark.parametrize("attack", NAMES)
def test_beside_a_liar_too_lengthened_rounds_come_to_less_loss(attack: str, rule: str) -> None:
    assert loss(rule, "fednova", attack) < loss(rule, "none", attack)
