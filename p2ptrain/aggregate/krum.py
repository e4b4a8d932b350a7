"""Krum and multi-Krum: trust the row that is closest to the most others."""

import torch

from p2ptrain.aggregate.geometric import GeometricRule, mean_of
from p2ptrain.aggregate.geometry import Geometry


class Krum(GeometricRule):
    """The vector with the least sum of squared distances to its n - f - 2 nearest others (Blanchard et al., 2017,
    1703.02757). Of equal scores the first row's.

    Guarantee: with n >= 2f + 3 and at most f liars the chosen vector is an honest one, or as close to its n - f - 2
    nearest as an honest one is to its own. Breakdown point 1/2. It averages nothing: the result has the variance of a
    single vector.
    Cost: one Gram matrix, O(n^2 d), and a copy.
    """

    name = "krum"

    def minimum(self) -> int:
        """2f + 3."""
        return 2 * self.f + 3

    def weigh(self, geometry: Geometry) -> torch.Tensor:
        """Return a weight for each row, float64 (n,), from the rows' geometry."""
        return mean_of(self._ranking(geometry)[:1], geometry.n)

    def _ranking(self, geometry: Geometry) -> torch.Tensor:
        """Indices, the best score first."""
        nearest_nn = geometry.squares().sort(dim=1).values[:, 1:]  # without each one's 0 to itself
        return nearest_nn[:, : geometry.n - self.f - 2].sum(dim=1).argsort(stable=True)


class MultiKrum(Krum):
    """The mean of the n - f vectors with the best scores of Krum (same source).

    Guarantee: as Krum's for each of the vectors that are averaged, f of which may be liars' that stand as close.
    Breakdown point 1/2. Much less variance than Krum.
    Cost: one Gram matrix, O(n^2 d), and a sum.
    """

    name = "multi_krum"

    def weigh(self, geometry: Geometry) -> torch.Tensor:
        """Return a weight for each row, float64 (n,), from the rows' geometry."""
        return mean_of(self._ranking(geometry)[: geometry.n - self.f], geometry.n)
