"""CAF: lower the weights of rows that stand out along the direction of largest variance, and keep the calmest mean."""

import torch

from p2ptrain.aggregate.geometric import GeometricRule
from p2ptrain.aggregate.geometry import Geometry


class CAF(GeometricRule):
    """Covariance-bound agnostic filter (Allouah, Guerraoui and Stephan, 2505.01874).

    All weights begin at 1. Along the top eigenvector of the weighted covariance each weight is lowered by its share of
    the largest squared projection, until n - 2f is left of all; the weighted mean with the least top eigenvalue on the
    way is the result.

    Guarantee: with n >= 2f + 1 the paper bounds the error by the top eigenvalue of the honest covariance, which need
    not be known, with no factor of the dimension. Breakdown point 1/2.
    Cost: one Gram matrix, O(n^2 d), n eigenvectors of n x n, and a weighted sum.
    """

    name = "caf"

    def minimum(self) -> int:
        """2f + 1: the honest are more than the liars."""
        return 2 * self.f + 1

    def weigh(self, geometry: Geometry) -> torch.Tensor:
        """Return a weight for each row, float64 (n,), from the rows' geometry."""
        trust_n = torch.ones(geometry.n, dtype=torch.float64).masked_fill_(geometry.lost_n, 0)
        best_n, least = trust_n, torch.inf
        while float(trust_n.sum()) > geometry.n - 2 * self.f:
            variance, projection_n = _spread(geometry, trust_n)
            if variance < least:
                best_n, least = trust_n, variance
            if not projection_n.any():
                break
            trust_n = trust_n * (1 - projection_n / projection_n.max())
        return best_n / best_n.sum()


def _spread(geometry: Geometry, trust_n: torch.Tensor) -> tuple[float, torch.Tensor]:
    """The top eigenvalue of the weighted covariance, and the squared projections on its eigenvector, up to a factor."""
    share_n = trust_n / trust_n.sum()
    product_n = geometry.gram_nn @ share_n
    centred_nn = geometry.gram_nn - product_n[:, None] - product_n[None, :] + share_n @ product_n
    root_n = share_n.sqrt()
    eigen = torch.linalg.eigh(centred_nn * root_n[:, None] * root_n[None, :])
    projection_n = (centred_nn @ (root_n * eigen.eigenvectors[:, -1])).square()
    return max(0.0, float(eigen.eigenvalues[-1])), projection_n.masked_fill(trust_n == 0, 0)
