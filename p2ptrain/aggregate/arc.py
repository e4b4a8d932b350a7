"""ARC: clip the longest vectors to the length of the next one."""

import torch

from p2ptrain.aggregate.clipping import clipped, norms
from p2ptrain.aggregate.geometry import Geometry
from p2ptrain.aggregate.pre_aggregator import MixingStage


class ARC(MixingStage):
    """Adaptive robust clipping: the floor(2 (f/n) (n - f)) longest rows are clipped to the length of the next longest
    (Allouah et al., 2405.14432).

    It measures from zero: for differences to a vector that the caller trusts, or for gradients.

    Guarantee: with n >= 2f + 1 at least f rows are clipped, so that none is longer than the longest honest one; the
    rule after it keeps its own guarantee (the paper). Rows that are not finite become zero.
    Cost: one Gram matrix, O(n^2 d), and for a coordinate-wise rule the scaled rows, O(n d).
    """

    name = "arc"
    from_origin = True
    keeps_rows = True

    def mix(self, n: int, geometry: Geometry | None) -> torch.Tensor:
        """Return weights float64 (m, points), rows summing to 1, for n rows."""
        norm_n = norms(n, geometry)
        longest = 2 * self.f * (n - self.f) // n
        return clipped(norm_n, float(norm_n.sort().values[n - longest - 1]))
