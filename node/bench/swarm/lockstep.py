"""Members of unlike speed that close their rounds at the same time: every payload arrives at once, and no network is
there. For tables of rules beside liars."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from p2ptrain.attacks import VectorAttack
from p2ptrain.compress import PayloadError
from p2ptrain.sync import SyncConfig, SyncStrategy, build, liar_of
from p2ptrain.sync.model_averaging import ModelAveraging
from p2ptrain.training import Trainer


@dataclass(kw_only=True)
class LockstepMember:
    """A member that takes `steps` of the steps of each round, which are lengthened by `factor`."""

    name: str
    steps: int
    factor: float
    trainer: Trainer
    own: ModelAveraging
    """What it holds itself."""
    sync: SyncStrategy = field(init=False)
    """What it sends by: another thing where it lies."""

    def __post_init__(self) -> None:
        self.sync = self.own

    def lie(self, attack: VectorAttack, seed: int) -> None:
        """Send by `attack` from now on."""
        self.sync = liar_of(self.own, attack, generator=torch.Generator().manual_seed(seed))

    def train(self, round: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the lengthened model of a round, and by how much it is: both (d,)."""
        anchor_d, scheduled = self.own.anchor_d.clone(), self.trainer.config.inner_steps
        for step in range(self.steps):
            self.trainer.step(round * scheduled + step * scheduled // self.steps)
        shift_d = (self.trainer.vector() - anchor_d) * (self.factor - 1)
        return self.trainer.vector() + shift_d, shift_d


def member_of(trainer: Trainer, sync: SyncConfig, *, index: int, steps: int) -> LockstepMember:
    """Return a member. Its rounds are lengthened as the trainer's settings say."""
    own = build(sync, trainer.vector(), f"n{index}", rounds=trainer.config.rounds)
    assert isinstance(own, ModelAveraging), "a strategy that averages models"
    factor = trainer.config.normalization().factor(steps, trainer.config.inner_steps)
    return LockstepMember(name=f"n{index}", steps=steps, factor=factor, trainer=trainer, own=own)


def play_rounds(members: Sequence[LockstepMember], rounds: int) -> None:
    """Train, exchange and average so often. A payload that is refused ends with its sender forgotten."""
    for member in members:
        for other in _others(members, member):
            member.sync.track(other.name, None)
    for round in range(rounds):
        trained = [member.train(round) for member in members]
        messages = {
            member.name: member.sync.encode(theta_d, round=round)
            for member, (theta_d, _) in zip(members, trained, strict=True)
        }
        for member, (theta_d, shift_d) in zip(members, trained, strict=True):
            heard = {}
            for other in _others(members, member):
                try:
                    member.sync.apply(other.name, messages[other.name].codec, messages[other.name].payload)
                    heard[other.name] = 0
                except PayloadError:
                    member.sync.forget(other.name)
            result = member.sync.aggregate(theta_d, heard, round=round)
            member.trainer.correct(result.correction_d + shift_d)


def _others(members: Sequence[LockstepMember], member: LockstepMember) -> list[LockstepMember]:
    return [other for other in members if other is not member]
