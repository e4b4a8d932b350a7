"""Liars among members of unlike speed, whose short rounds are lengthened: attack by attack.

Five honest members take 20, 20, 10, 4 and 2 steps a round, and the sixth lies. Every payload arrives at once.
"""

from dataclasses import replace
from functools import cache

import pytest
import torch

from node.bench.swarm.lockstep import LockstepMember, member_of, play_rounds
from p2ptrain import attacks
from p2ptrain.attacks import VectorAttack
from p2ptrain.sync import SyncConfig
from p2ptrain.tasks import Shard
from p2ptrain.tasks.digits import Digits
from p2ptrain.training import TrainConfig, Trainer

STEPS = (20, 20, 10, 4, 2)
ROUNDS = 12
CONFIG = TrainConfig(rounds=ROUNDS, inner_steps=20, batch_size=16, threads=1, warmup_steps=5, learning_rate=6e-3)
NAMES = attacks.names(VectorAttack)


@cache
def loss(rule: str, normalization: str, attack: str | None) -> float:
    """Of the honest members' mean model, held out."""
    sync = SyncConfig(aggregator=rule, f=1)
    members = [_member(index, steps, sync, normalization) for index, steps in enumerate(STEPS)]
    if attack is not None:
        members.append(_member(len(STEPS), 20, sync, normalization))
        members[-1].lie(attacks.get(attack), 0)
    play_rounds(members, ROUNDS)
    honest_nd = torch.stack([member.own.anchor_d for member in members[: len(STEPS)]])
    return members[0].trainer.evaluate(honest_nd.mean(0))


def _member(index: int, steps: int, sync: SyncConfig, normalization: str) -> LockstepMember:
    config = replace(CONFIG, step_normalization=normalization)
    trainer = Trainer(Digits(partition="dirichlet"), config, Shard(index=index, count=len(STEPS) + 1))
    return member_of(trainer, sync, index=index, steps=steps)


@pytest.mark.thorough
@pytest.mark.parametrize("rule", ["trimmed_mean", "clipped_gossip"])
@pytest.mark.parametrize("attack", NAMES)
def test_beside_a_liar_too_lengthened_rounds_come_to_less_loss(attack: str, rule: str) -> None:
    assert loss(rule, "fednova", attack) < loss(rule, "none", attack)
