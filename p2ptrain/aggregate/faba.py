"""FABA: take the mean, leave out the row farthest from it, f times over."""

import torch

from p2ptrain.aggregate.geometric import WeightedGeometricRule
from p2ptrain.aggregate.geometry import Geometry


class FABA(WeightedGeometricRule):
    """f times: leave out the vector farthest from the mean of those that remain; then their mean (Xia et al., IJCAI
    2019); it can be weighted.

    Guarantee: for n >= 3f + 1: while a third of the remaining lie, honest ones outweigh them in the mean. More is
    refused. Breakdown point 1/3.
    Cost: one Gram matrix, O(n^2 d), and a weighted sum.
    """

    name = "faba"
    breakdown = 1 / 3

    def minimum(self) -> int:
        """3f + 1."""
        return 3 * self.f + 1

    def weigh_shares(self, geometry: Geometry, share_n: torch.Tensor) -> torch.Tensor:
        """Return a weight for each row, float64 (n,), from geometry and shares."""
        return without_farthest(geometry, share_n, self.f)


def without_farthest(
    geometry: Geometry, share_n: torch.Tensor, times: int, *, keep_first: bool = False
) -> torch.Tensor:
    """Return the shares of those that remain, scaled to sum 1, after the farthest from their mean has left so many
    times."""
    remaining_n = torch.ones(geometry.n, dtype=torch.bool)
    for _ in range(times):
        weight_n = _scaled(share_n, remaining_n)
        square_n = geometry.squares_to(weight_n).masked_fill(~remaining_n, -1)
        remaining_n[keep_first + int(square_n[keep_first:].argmax())] = False
    return _scaled(share_n, remaining_n)


def _scaled(share_n: torch.Tensor, remaining_n: torch.Tensor) -> torch.Tensor:
    """The shares of those that remain, with sum 1; equal ones where all the weight has left."""
    weight_n = share_n.masked_fill(~remaining_n, 0)
    return weight_n / weight_n.sum() if weight_n.any() else remaining_n.double() / remaining_n.sum()
