"""Looks at data for signs that they have shifted: a model's loss on pieces of them, and moments of their inputs.

Moments are means over examples of K random features of an input, so that their number depends on no input's size.
Numbers are projected on fixed random directions: the means of the projections and of their squares are the first and
second moments (Johnson and Lindenstrauss, 1984). Whole numbers are names, such as bytes or tokens, whose size says
nothing: the mean over positions of random signs of each name is a projection of the histogram of names.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import torch

from p2ptrain.tasks.base import Batch, Shard, Task
from p2ptrain.tasks.batches import pieces, tensors_in

PROJECTIONS: Final = 8
"""Random directions, or signs of each name. Chosen: of a shift along one direction in thousands of dimensions each sees
a share, and eight of them seldom miss it together."""

FEATURES: Final = 2 * PROJECTIONS
"""Moments of a piece."""

PIECES: Final = 8
"""Pieces that the examples of a look are cut into: from their differences follows how far chance goes."""

SEED: Final = 0x51F7
"""Of the directions: the same at every look and after a restart."""

LOOKED: Final = 0x2B
"""Turned in the data's seed for what is looked at: another order of the same shard than that of training."""

_MIX: Final = 0x9E3779B97F4A7C15 - (1 << 64)
"""Odd, so that names times it differ in all bits (Fibonacci hashing); as a signed integer."""


@dataclass(frozen=True, kw_only=True)
class DataLook:
    """What a look at `n` pieces of data saw."""

    losses_n: torch.Tensor
    """The model's mean loss on each, fp64 (n,)."""
    moments_nk: torch.Tensor
    """Moments of the inputs of each, fp64 (n, FEATURES); (n, 0) for batches without tensors of examples."""

    @property
    def loss(self) -> float:
        """Return the mean loss."""
        return float(self.losses_n.mean())

    @property
    def moments_k(self) -> torch.Tensor:
        """Return the mean moments, fp64 (FEATURES,) or (0,)."""
        return self.moments_nk.mean(0)


def fresh_batch(task: Task, step: int, *, seed: int, shard: Shard, examples: int) -> Batch:
    """Return examples of the shard as it is at training step `step`, in another order than training's."""
    return task.train_batch(step, seed=seed ^ LOOKED, shard=shard, size=examples)


def look_at(batches: Sequence[Batch], losses: Callable[[list[Batch]], list[float]]) -> DataLook:
    """Look at these batches, cut into PIECES pieces or more. `losses` returns a model's mean loss on each
    of some."""
    parts = _cut(batches)
    moments = [moments_of(part) for part in parts]
    return DataLook(losses_n=torch.tensor(losses(parts), dtype=torch.float64), moments_nk=torch.stack(moments))


def _cut(batches: Sequence[Batch]) -> list[Batch]:
    """Return pieces of about the same number of examples."""
    each = max(1, math.ceil(PIECES / len(batches)))
    found: list[Batch] = []
    for batch in batches:
        size = max((len(it) for _, it in tensors_in(batch) if it.dim()), default=1)
        found += pieces(batch, max(1, math.ceil(size / each)))
    return found


def moments_of(batch: Batch) -> torch.Tensor:
    """Return the moments of the batch's inputs, which are its first tensor of examples: fp64 (FEATURES,); (0,) where
    there is none."""
    inputs = next((it for _, it in tensors_in(batch) if it.dim()), None)
    if inputs is None or not inputs.numel():
        return torch.empty(0, dtype=torch.float64)
    values = inputs.detach().cpu()
    return _of_numbers(values) if values.is_floating_point() else _of_names(values)


def _of_numbers(values: torch.Tensor) -> torch.Tensor:
    flat_nd = values.double().reshape(len(values), -1)
    size = flat_nd.shape[1]
    generator = torch.Generator().manual_seed(SEED)
    directions_dk = torch.randn(size, PROJECTIONS, generator=generator, dtype=torch.float64) / math.sqrt(size)
    projected_nk = flat_nd @ directions_dk
    return torch.cat([projected_nk.mean(0), projected_nk.square().mean(0)])


def _of_names(values: torch.Tensor) -> torch.Tensor:
    """Means of signs: bits of a hash of each name."""
    mixed_n = (values.long().reshape(-1) + SEED) * _MIX
    mixed_n = (mixed_n ^ (mixed_n >> 29)) * _MIX
    bits = [((mixed_n >> (63 - place)) & 1).double().mean() * 2 - 1 for place in range(FEATURES)]
    return torch.stack(bits)
