"""A task of your own, in one file: `p2ptrain up --task examples.my_task:create` from the folder above this one.

A task is any object with the members of `p2ptrain.tasks.base.Task`; it need not inherit from anything. This one
learns which arm of a spiral a point lies on. What a swarm asks of you, beyond a model and a loss:

- Address data by `step`: `train_batch` is a function of its arguments alone, so that a restarted node goes on where it
  stopped. A generator seeded with [seed, shard.index, step] does it.
- Give each shard its own examples, and keep some that no shard has for `eval_batches`, the same on every node.
- No BatchNorm: its statistics are not averaged. LayerNorm and GroupNorm are fine.

Options come from the configuration as keyword arguments of the factory: `create(width=64)`.
"""

from typing import ClassVar

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from p2ptrain.tasks.base import Batch, Shard, TaskError

EXAMPLES = 4_000
HELD_OUT_EVERY = 5
"""Every fifth example is held out."""


class Spirals:
    """Two-dimensional points, three classes."""

    name = "spirals"
    metric = "nats per point"
    units: ClassVar[dict[str, str]] = {"accuracy": "%"}

    def __init__(self, width: int, arms: int) -> None:
        self.width, self.arms = width, arms
        self.points, self.labels = _points(arms)
        every = np.arange(EXAMPLES)
        self.train = every[every % HELD_OUT_EVERY != 0]
        self.held_out = every[every % HELD_OUT_EVERY == 0]

    def build_model(self) -> nn.Module:
        """The swarm seeds torch's generator before this call, so every node gets the same model."""
        wide = self.width
        hidden = [nn.Linear(2, wide), nn.GELU(), nn.Linear(wide, wide), nn.LayerNorm(wide), nn.GELU()]
        return nn.Sequential(*hidden, nn.Linear(wide, self.arms))

    def train_batch(self, step: int, *, seed: int, shard: Shard, size: int) -> Batch:
        """Examples index, index + count, index + 2 count, ... are the shard's."""
        mine = self.train[shard.index :: shard.count]
        rng = np.random.default_rng([seed, shard.index, step])
        return self._batch(rng.choice(mine, size))

    def eval_batches(self, limit: int) -> list[Batch]:
        """One batch is enough here."""
        return [self._batch(self.held_out[:limit])]

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """The mean over the batch."""
        points, labels = batch
        return functional.cross_entropy(model(points).float(), labels)

    def metrics(self, model: nn.Module, batch: Batch) -> dict[str, float]:
        """What else is to be seen of the held-out points, beside the loss; a task need not have any."""
        points, labels = batch
        return {"accuracy": 100 * float((model(points).argmax(1) == labels).float().mean())}

    def tokens(self, batch: Batch) -> int:
        """What throughput is counted in: here, points."""
        return len(batch[1])

    def _batch(self, chosen: np.ndarray) -> Batch:
        return self.points[chosen], self.labels[chosen]


def create(width: int = 32, arms: int = 3) -> Spirals:
    """The factory that `--task examples.my_task:create` names. A TaskError's text is shown to the user as it is."""
    if width < 1 or arms < 2:
        raise TaskError("spirals: width must be at least 1, and arms at least 2")
    return Spirals(width, arms)


def _points(arms: int) -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(0)  # fixed: every node must have the same data
    labels = rng.integers(0, arms, EXAMPLES)
    radius = rng.uniform(0.1, 1.0, EXAMPLES)
    angle = 2 * np.pi * labels / arms + 4 * radius + rng.normal(0, 0.1, EXAMPLES)
    points = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
    return torch.from_numpy(points).float(), torch.from_numpy(labels)
