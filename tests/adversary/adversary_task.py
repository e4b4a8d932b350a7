"""The least that is worth learning: a linear map from noisy examples, so that a swarm trains for 200 virtual seconds in
a second of a core.

The loss has a floor that is known, the variance of the noise, and a run comes near it whatever the order of its data:
so a tenth above a clean run is the work of a lie and not of chance.
"""

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from p2ptrain.compress.base import PayloadError
from p2ptrain.tasks.base import Batch, Shard

INPUTS, OUTPUTS = 24, 8
EXAMPLES = 2048
HELD_OUT = 256
NOISE = 0.5
"""Standard deviation: the loss falls from some 3 to 0.25."""


class LeastSquares:
    """`OUTPUTS` linear functions of `INPUTS` numbers, in 200 parameters."""

    name = "least-squares"
    metric = "squared error"

    def __init__(self) -> None:
        rng = np.random.default_rng(0)  # fixed: every node must have the same data
        inputs = rng.normal(size=(EXAMPLES + HELD_OUT, INPUTS))
        weights = rng.normal(size=(INPUTS, OUTPUTS)) * 0.35
        targets = inputs @ weights + NOISE * rng.normal(size=(EXAMPLES + HELD_OUT, OUTPUTS))
        self._inputs, self._targets = torch.from_numpy(inputs).float(), torch.from_numpy(targets).float()

    def build_model(self) -> nn.Module:
        """One linear layer."""
        return nn.Linear(INPUTS, OUTPUTS)

    def train_batch(self, step: int, *, seed: int, shard: Shard, size: int) -> Batch:
        """Examples that the step, the seed and the shard choose."""
        chosen = (np.arange(size) * 97 + step * 389 + seed * 7919 + shard.index * 131) % EXAMPLES
        return self._inputs[chosen], self._targets[chosen]

    def eval_batches(self, limit: int) -> list[Batch]:
        """One batch, of examples that nobody trains on."""
        return [(self._inputs[EXAMPLES:], self._targets[EXAMPLES:])]

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """The mean squared error."""
        return functional.mse_loss(model(batch[0]), batch[1])

    def tokens(self, batch: Batch) -> int:
        """Examples."""
        return len(batch[1])


class Quirky:
    """A codec of somebody's own, that refuses payloads for a reason of its own."""

    name = "quirky"
    contraction = 1.0
    gamma = 1.0

    def encode(self, x_d: torch.Tensor) -> bytes:
        """Nothing is told."""
        return bytes(8)

    def decode(self, payload: bytes | memoryview, numel: int) -> torch.Tensor:
        """Raises PayloadError, always."""
        raise PayloadError("too_quirky", "it does not like it")
