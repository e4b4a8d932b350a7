"""Clipping: no vector longer than a limit."""

from typing import Annotated

import torch

from p2ptrain.aggregate.centered_clipping import check_tau, clip_factor
from p2ptrain.aggregate.geometry import Geometry
from p2ptrain.aggregate.pre_aggregator import MixingStage


class Clipping(MixingStage):
    """Row i becomes x_i min(1, tau / ||x_i||). `tau` None: the median norm, as SparseLoCo clips its peers' updates
    (2508.15706).

    It measures from zero: for differences to a vector that the caller trusts, or for gradients.

    Guarantee: with n >= 2f + 1 no row is longer than the longest honest one. Rows that are not finite have no
    direction, and become zero.
    Cost: one Gram matrix, O(n^2 d), and for a coordinate-wise rule the scaled rows, O(n d).
    """

    name = "clipping"
    from_origin = True
    keeps_rows = True

    def __init__(
        self,
        *,
        f: int = 1,
        tau: Annotated[float | None, "How far a vector is followed; None: an adaptive choice."] = None,
    ) -> None:
        super().__init__(f=f)
        check_tau(self.name, tau)
        self.tau = tau

    def mix(self, n: int, geometry: Geometry | None) -> torch.Tensor:
        """Return weights float64 (m, points), rows summing to 1, for n rows."""
        norm_n = norms(n, geometry)
        middle = norm_n.sort().values[(n - 1) // 2 : n // 2 + 1]
        return clipped(norm_n, float(middle.mean()) if self.tau is None else self.tau)


def norms(n: int, geometry: Geometry | None) -> torch.Tensor:
    """Distances (n,) of the rows from zero, which is the last point."""
    assert geometry is not None
    return geometry.squares()[-1, :n].sqrt()


def clipped(norm_n: torch.Tensor, limit: float) -> torch.Tensor:
    """Weights (n, n + 1) that shorten rows to the limit, towards zero, the last point."""
    factor_n = clip_factor(norm_n, limit)
    return torch.cat([factor_n.diag(), (1 - factor_n)[:, None]], dim=1)
