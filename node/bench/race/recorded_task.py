"""The byte-lm task for a node that races: real data and a real loss, and models kept instead of evaluated on the clock.

A node evaluates beside its training, on cores that it shares here with the other hosts. So the held-out split is a few
windows, enough for the node to see that it has not diverged, and the model that it evaluates is kept.
"""

from pathlib import Path
from typing import Final

import torch
from torch import nn

from node.bench.race.track import TrackWriter
from p2ptrain.tasks.base import Batch, Shard
from p2ptrain.tasks.byte_lm.task import ByteLM

NAME: Final = "node.bench.race.recorded_task:create"
WINDOWS: Final = 4
"""Held-out windows that a node itself evaluates: as many as it compares its neighbours' predictions on."""


class RecordedByteLM(ByteLM):
    """A byte-lm that tells the track of its folder what is done. `size` and `data` are byte-lm's own options."""

    def __init__(self, folder: Path, *, size: str, data: str | None) -> None:
        super().__init__(size=size, data=data)
        self._track = TrackWriter(folder)
        self._step = 0

    def train_batch(self, step: int, *, seed: int, shard: Shard, size: int) -> Batch:
        """Note that the steps before this one are done, and return the task's own batch."""
        self._step = step
        self._track.step(step)
        return super().train_batch(step, seed=seed, shard=shard, size=size)

    def eval_batches(self, limit: int) -> list[Batch]:
        """Return the first few held-out windows, in one batch."""
        return super().eval_batches(min(limit, WINDOWS))

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """Return the task's own loss, and keep a model that is being evaluated."""
        if not model.training:
            self._track.keep(self._step, model)
        return super().loss(model, batch)


def create(folder: str, size: str = "nano", data: str | None = None) -> RecordedByteLM:
    """Build the task of one host. TaskError as byte-lm's."""
    return RecordedByteLM(Path(folder), size=size, data=data)
