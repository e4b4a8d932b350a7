"""The geometric median: the point with the least sum of distances to all."""

import torch

from p2ptrain.aggregate.geometric import WeightedGeometricRule, mean_of
from p2ptrain.aggregate.geometry import Geometry

STEPS = 1000
"""At most; a step is O(n^2), and most inputs take a few dozen."""
CONVERGED = 1e-10
"""Movement of the weights, summed, at which it stops."""
SMOOTHING = 1e-9
"""Least distance, against the smallest from the start's middle: keeps steps finite where the median is an input."""


class GeometricMedian(WeightedGeometricRule):
    """Geometric median by Weiszfeld's steps, smoothed (RFA: Pillutla, Kakade and Harchaoui, 1912.13445); it can be
    weighted. The steps run among the inputs' weights, on the Gram matrix, so they go on until nothing moves, where the
    paper makes a few over whole vectors. They begin at the mean of the n - f inputs that stand closest together.

    Guarantee: with n >= 2f + 1 and at most f liars it is within 2 (n - f) / (n - 2f) times the largest honest distance
    to any point, of that point. Breakdown point 1/2. Inputs that are not finite are left out.
    Cost: one Gram matrix, O(n^2 d), and a weighted sum.
    """

    name = "geometric_median"

    def minimum(self) -> int:
        """2f + 1: the honest are more than the liars."""
        return 2 * self.f + 1

    def weigh_shares(self, geometry: Geometry, share_n: torch.Tensor) -> torch.Tensor:
        """Return a weight for each row, float64 (n,), from geometry and shares."""
        closest = geometry.closest(geometry.n - self.f)
        weight_n = mean_of(closest, geometry.n)
        square_n = geometry.squares()[closest[0]]
        apart = square_n[square_n.isfinite() & (square_n > 0)]
        at_one_point = square_n == 0
        if len(apart) == 0 or float(share_n[at_one_point].sum()) >= 0.5:
            return mean_of(at_one_point.nonzero().flatten(), geometry.n)  # half of all stand there, or all
        least = SMOOTHING * float(apart.min().sqrt())
        for _ in range(STEPS):
            pull_n = share_n / geometry.squares_to(weight_n).sqrt().clamp(min=least)
            before_n, weight_n = weight_n, pull_n / pull_n.sum()
            if float((weight_n - before_n).abs().sum()) < CONVERGED:
                break
        return weight_n
