"""Nearest-neighbour mixing: everybody's vector becomes the mean of the n - f nearest to it."""

import torch

from p2ptrain.aggregate.geometry import Geometry
from p2ptrain.aggregate.pre_aggregator import MixingStage


class NNM(MixingStage):
    """Row i becomes the mean of the n - f rows nearest to it, itself included (Allouah et al., 2302.01772).

    Guarantee: with n >= 2f + 1 it brings any standard rule after it to the best order of error there is when data
    differ between nodes (the paper). A row that is not finite becomes the mean of n - f others.
    Cost: one Gram matrix, O(n^2 d), and for a coordinate-wise rule the mixtures, O(n^2 d) again.
    """

    name = "nnm"

    def mix(self, n: int, geometry: Geometry | None) -> torch.Tensor:
        """Return weights float64 (m, points), rows summing to 1, for n rows."""
        assert geometry is not None
        square_nn = geometry.first(n).squares()
        square_nn[geometry.lost_n[:n]] = 0
        square_nn[:, geometry.lost_n[:n]] = torch.inf
        nearest = square_nn.argsort(dim=1, stable=True)[:, : n - self.f]
        return torch.zeros(n, n, dtype=torch.float64).scatter_(1, nearest, 1 / (n - self.f))
