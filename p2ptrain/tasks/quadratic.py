"""The quadratic task: each node has a quadratic of its own, and the optimum of their mean is known.

    f_i(x) = 0.5 a_i |x - b_i|^2,   f = mean_i f_i,   x* = sum_i a_i b_i / sum_i a_i

The standard problem of theory and of simulations, for what differs between a run and its bounds differs by the method
alone: no data, no activations, 64 parameters. b_i is Gaussian around a common centre with standard deviation `spread`
(how unlike the nodes' data are), a_i log-uniform in [1, `condition`] (how unlike their curvatures are), and each
example's gradient is off by Gaussian noise of standard deviation `noise` in each coordinate.

The functions follow from a fixed seed, so that all nodes agree on them. They are dealt out like examples of any other
task: with as many shards as functions each node has one, with fewer shards several each.
"""

import math
from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from p2ptrain.tasks.base import Batch, Shard, TaskError

Floats = npt.NDArray[np.float64]

FUNCTIONS_SEED = 1847
"""Fixed: whatever seed a node trains with, its functions are the same."""

CENTRE = 0.1
"""Standard deviation of the common centre, and of where models begin: some fifty steps of adamw apart."""

EVAL_BATCH = 1024


class Residual(nn.Module):
    """The model: one vector x fp32 (d,)."""

    def __init__(self, dimension: int) -> None:
        super().__init__()
        self.x_d = nn.Parameter(CENTRE * torch.randn(dimension))

    def forward(self, target_nd: torch.Tensor) -> torch.Tensor:
        """Return x - z (n, d) for each row z."""
        return self.x_d - target_nd


class Quadratic:
    """Minimise the mean of quadratics, one a node. Options: `dimension` d of x; `functions` N, at least as many as
    shards; `spread`, `condition` and `noise` as above. TaskError on any that cannot be.

    An example is (z, a): z = b_i + noise / a_i, fp32 (d,), and the curvature a, so that the gradient of
    0.5 a |x - z|^2 is that of f_i with noise. Held out are the functions themselves, without noise: the loss over all N
    of them is f(x), which is at least `lowest`.
    """

    name = "quadratic"
    metric = "mean of the quadratics"

    def __init__(
        self,
        dimension: int = 64,
        functions: int = 64,
        spread: float = 1.0,
        condition: float = 1.0,
        noise: float = 0.1,
    ) -> None:
        if dimension < 1 or functions < 1:
            raise TaskError(f"quadratic needs a dimension and functions of 1 or more, not {dimension} and {functions}")
        for option, value, least in (("spread", spread, 0.0), ("condition", condition, 1.0), ("noise", noise, 0.0)):
            if not least <= value < math.inf:
                raise TaskError(f"quadratic: {option} must be a number of {least:g} or more, not {value}")
        self.dimension, self.functions = dimension, functions
        self.spread, self.condition, self.noise = spread, condition, noise
        rng = np.random.default_rng(FUNCTIONS_SEED)
        centre_d = CENTRE * rng.standard_normal(dimension)
        self.curvature_n: Floats = condition ** rng.random(functions)
        """a_i (N,)."""
        self.minimum_nd: Floats = centre_d + spread * rng.standard_normal((functions, dimension))
        """b_i (N, d)."""

    @cached_property
    def optimum_d(self) -> Floats:
        """x* (d,), where f is lowest."""
        optimum_d: Floats = self.curvature_n @ self.minimum_nd / self.curvature_n.sum()
        return optimum_d

    @cached_property
    def lowest(self) -> float:
        """f(x*)."""
        return self.value(self.optimum_d)

    def value(self, x_d: npt.NDArray[np.floating]) -> float:
        """Return f of x (d,)."""
        squares_n = np.square(self.minimum_nd - x_d).sum(axis=1)
        return float(0.5 * (self.curvature_n * squares_n).mean())

    def build_model(self) -> nn.Module:
        """x, drawn from torch's generator."""
        return Residual(self.dimension)

    def train_batch(self, step: int, *, seed: int, shard: Shard, size: int) -> Batch:
        """`size` noisy examples of the shard's functions: z fp32 (size, d) and a fp32 (size,). TaskError where there
        are more shards than functions."""
        if shard.count > self.functions:
            raise TaskError(
                f"quadratic has {self.functions} functions for {shard.count} shards: set task.functions to as many"
            )
        mine = len(range(shard.index % shard.count, self.functions, shard.count))
        rng = np.random.default_rng([seed, shard.index, step])
        chosen = shard.index % shard.count + shard.count * (rng.integers(0, mine, size) if mine > 1 else 0)
        chosen = np.broadcast_to(chosen, (size,))
        noise_sd = rng.standard_normal((size, self.dimension), dtype=np.float32)
        curvature_s = self.curvature_n[chosen]
        target_sd = self.minimum_nd[chosen] + noise_sd * (self.noise / curvature_s)[:, None]
        return torch.from_numpy(target_sd.astype(np.float32)), torch.from_numpy(curvature_s.astype(np.float32))

    def example_count(self, shard: Shard) -> int:
        """Return how many functions the shard has."""
        return len(range(shard.index % shard.count, self.functions, shard.count))

    def examples_at(self, shard: Shard, numbers: Sequence[int]) -> Batch:
        """Return these functions of the shard, as examples without noise."""
        chosen = shard.index % shard.count + shard.count * np.array(numbers, np.int64)
        target_nd, curvature_n = self.minimum_nd[chosen], self.curvature_n[chosen]
        return torch.from_numpy(target_nd.astype(np.float32)), torch.from_numpy(curvature_n.astype(np.float32))

    def eval_batches(self, limit: int) -> list[Batch]:
        """Return the first `limit` functions, of all nodes, as examples without noise. They are in no order."""
        end = min(limit, self.functions)
        target_nd = torch.from_numpy(self.minimum_nd[:end].astype(np.float32))
        curvature_n = torch.from_numpy(self.curvature_n[:end].astype(np.float32))
        spans = [slice(at, min(at + EVAL_BATCH, end)) for at in range(0, end, EVAL_BATCH)]
        return [(target_nd[span], curvature_n[span]) for span in spans]

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """Mean of 0.5 a |x - z|^2 over the examples."""
        target_nd, curvature_n = batch
        loss: torch.Tensor = 0.5 * (curvature_n * model(target_nd).float().square().sum(1)).mean()
        return loss

    def tokens(self, batch: Batch) -> int:
        """Examples."""
        return int(batch[1].numel())

    def derived_metrics(self, loss: float) -> Mapping[str, float]:
        """`excess`: f(x) - f(x*), where all functions were evaluated (`train.eval_examples`)."""
        return {"excess": loss - self.lowest}
