"""What the rules about whole vectors share: one pass for the geometry, a few numbers, one pass for the weighted sum."""

from abc import ABC, abstractmethod

import torch

from p2ptrain.aggregate.base import Columns, Rows
from p2ptrain.aggregate.geometry import Geometry, measure, sums, weighted_sum
from p2ptrain.aggregate.rule import Rule, WeightedRule


class GeometricRule(Rule, ABC):
    """A rule that answers with one weight a row, from the rows' geometry alone. Cost: two passes, O(n^2 d)."""

    def by_columns(self, rows: Rows) -> Columns:
        """Return what gives any slice of the aggregate: all rows are measured now, and added up when it is asked."""
        self._check(rows)
        return sums(rows, self.weigh(measure(rows, self.f, own_first=self.own_first)))

    def _combine(self, rows: Rows) -> torch.Tensor:
        return weighted_sum(rows, self.weigh(measure(rows, self.f, own_first=self.own_first)))

    @abstractmethod
    def weigh(self, geometry: Geometry) -> torch.Tensor:
        """Weights float64 (n,) that sum to 1."""


class WeightedGeometricRule(WeightedRule, GeometricRule):
    """A geometric rule whose inputs may count differently."""

    def weigh(self, geometry: Geometry) -> torch.Tensor:
        """Return a weight for each row, float64 (n,), for equal shares."""
        return self.weigh_shares(geometry, torch.full((geometry.n,), 1 / geometry.n, dtype=torch.float64))

    @abstractmethod
    def weigh_shares(self, geometry: Geometry, share_n: torch.Tensor) -> torch.Tensor:
        """Weights float64 (n,) that sum to 1, where row i counts for share_n[i] of all."""

    def _combine_weighted(self, rows: Rows, share_n: torch.Tensor) -> torch.Tensor:
        return weighted_sum(rows, self.weigh_shares(measure(rows, self.f, own_first=self.own_first), share_n))


def mean_of(chosen: torch.Tensor, n: int) -> torch.Tensor:
    """Equal weights float64 (n,) for the chosen indices, 0 for the others."""
    weight_n = torch.zeros(n, dtype=torch.float64)
    weight_n[chosen] = 1 / len(chosen)
    return weight_n
