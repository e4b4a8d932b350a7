"""The digits, whose shards change at a step: `task.name = "shifting_digits:create"`."""

from collections.abc import Collection, Sequence
from typing import Annotated

import torch

from p2ptrain.tasks.base import Batch, Shard
from p2ptrain.tasks.digits import Digits

NEVER = 1 << 40


def turned(images: torch.Tensor) -> torch.Tensor:
    """A quarter turn: as from a scanner that was put up another way."""
    return images.reshape(-1, 8, 8).rot90(1, (1, 2)).reshape(-1, 64)


class ShiftingDigits(Digits):
    """From step `at` on the images of the shards `which` are turned."""

    def __init__(self, at: int, which: Collection[int]) -> None:
        super().__init__()
        self._at, self._which = at, frozenset(which)

    def train_batch(self, step: int, *, seed: int, shard: Shard, size: int) -> Batch:
        images, labels = super().train_batch(step, seed=seed, shard=shard, size=size)
        return (turned(images) if step >= self._at and shard.index in self._which else images), labels


def create(
    at: Annotated[int, "Step at which they change."] = NEVER, which: Annotated[Sequence[int], "Shards that do."] = ()
) -> ShiftingDigits:
    return ShiftingDigits(at, which)
