"""What the aggregators share: the promise is checked before a vector is read; a matrix in memory is a `Rows` too."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch

from p2ptrain.aggregate.base import Rows


class Rule(ABC):
    """A member's common half. It says its `name`, its `minimum` and how to `_combine`."""

    name: str
    breakdown = 0.5
    own_first = False

    def __init__(self, *, f: int = 1) -> None:
        if f < 0:
            raise ValueError(f"{self.name}: f must not be negative, not {f}")
        self.f = f

    @abstractmethod
    def minimum(self) -> int:
        """Return the fewest inputs with which the promise for `f` holds."""

    def __call__(self, x_nd: torch.Tensor) -> torch.Tensor:
        """Aggregate fp32 (n, d) to (d,). ValueError when n is below `minimum()`."""
        return self.reduce(Rows.of(x_nd))

    def reduce(self, rows: Rows) -> torch.Tensor:
        """Aggregate rows that are read by chunks of columns, to (d,). ValueError as `__call__`."""
        self._check(rows)
        return self._combine(rows)

    def _check(self, rows: Rows) -> None:
        if rows.n < self.minimum():
            raise ValueError(f"{self.name} with f={self.f} needs {self.minimum()} vectors or more, not {rows.n}")

    @abstractmethod
    def _combine(self, rows: Rows) -> torch.Tensor:
        """The aggregate (d,) of enough rows."""


class WeightedRule(Rule):
    """A rule whose inputs may count differently: it combines them by weights that sum to 1."""

    def weighted(self, rows: Rows | torch.Tensor, weights: Sequence[float]) -> torch.Tensor:
        """Aggregate with one weight a row, >= 0; only their ratios matter. ValueError on others."""
        rows = Rows.of(rows) if isinstance(rows, torch.Tensor) else rows
        self._check(rows)
        return self._combine_weighted(rows, shares(weights, rows.n))

    def _combine(self, rows: Rows) -> torch.Tensor:
        return self._combine_weighted(rows, shares([1.0] * rows.n, rows.n))

    @abstractmethod
    def _combine_weighted(self, rows: Rows, share_n: torch.Tensor) -> torch.Tensor:
        """The aggregate (d,) of enough rows with float64 shares that sum to 1."""


def shares(weights: Sequence[float], n: int) -> torch.Tensor:
    """Weights float64 (n,) scaled to sum 1. ValueError for others than n numbers >= 0, not all 0."""
    if len(weights) != n:
        raise ValueError(f"{len(weights)} weights for {n} vectors")
    weights = [float(weight) for weight in weights]
    if not all(math.isfinite(weight) and weight >= 0 for weight in weights) or not sum(weights) > 0:
        raise ValueError(f"weights must be numbers >= 0 and not all 0, not {weights}")
    largest = max(weights)  # first, so that their sum cannot overflow
    share_n = torch.tensor([weight / largest for weight in weights], dtype=torch.float64)
    return share_n / share_n.sum()
