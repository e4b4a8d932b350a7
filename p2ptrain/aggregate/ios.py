"""IOS: average with the neighbours, after leaving out the row farthest from the average, f times over."""

import torch

from p2ptrain.aggregate.faba import without_farthest
from p2ptrain.aggregate.geometric import WeightedGeometricRule
from p2ptrain.aggregate.geometry import Geometry


class IOS(WeightedGeometricRule):
    """Iterative outlier scissor: FABA with weights that never leaves out the own vector, in row 0 (Wu, Chen and Ling,
    2206.04568).

    Guarantee: for n >= 3f + 1, own vector included: while a third of the remaining lie, honest ones outweigh them in
    the mean. More is refused. Breakdown point 1/3, and that of the graph: topology.py.
    Cost: one Gram matrix, O(n^2 d), and a weighted sum.
    """

    name = "ios"
    breakdown = 1 / 3
    own_first = True

    def minimum(self) -> int:
        """3f + 1, own vector included."""
        return 3 * self.f + 1

    def weigh_shares(self, geometry: Geometry, share_n: torch.Tensor) -> torch.Tensor:
        """Return a weight for each row, float64 (n,), from geometry and shares."""
        return without_farthest(geometry, share_n, self.f, keep_first=True)
