"""The plain mean: the best estimate when nobody lies, and anyone's to move when somebody does."""

import torch

from p2ptrain.aggregate.base import Columns, Rows
from p2ptrain.aggregate.coordinate import Everything, average
from p2ptrain.aggregate.geometry import weighted_sum
from p2ptrain.aggregate.rule import WeightedRule


class Mean(WeightedRule):
    """Coordinate-wise mean; it can be weighted.

    Guarantee: none against liars: one of them can put the result anywhere. `f` is taken so that a configuration can
    switch aggregators, but the attribute stays 0, which is what the mean withstands. Input that is not finite gives
    output that is not finite, in the same coordinates.
    Cost: one pass, O(n d), no temporary.
    """

    name = "mean"
    breakdown = 0.0

    def __init__(self, *, f: int = 0) -> None:
        super().__init__(f=f)
        self.f = 0

    def minimum(self) -> int:
        """Return 1: a single vector is enough."""
        return 1

    def averages(self, n: int) -> int:
        """Return n: it leaves none out."""
        return n

    def by_columns(self, rows: Rows) -> Columns:
        """Return what gives any slice of the mean: each column is one by itself."""
        self._check(rows)
        return lambda at: self._combine(rows.columns(at))

    def _combine(self, rows: Rows) -> torch.Tensor:
        return average(rows, Everything(rows.n))

    def _combine_weighted(self, rows: Rows, share_n: torch.Tensor) -> torch.Tensor:
        return weighted_sum(rows, share_n)
