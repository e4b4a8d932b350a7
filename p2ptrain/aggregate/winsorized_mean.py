"""Winsorized mean: in every coordinate the lowest and the highest values are pulled in to the ones next to them, and
all are averaged.

The values are put in order by a network as meamed's are, its ends then overwritten: as many rows are averaged as came.
"""

from typing import Annotated

import torch

from p2ptrain.aggregate.coordinate import CoordinateRule, Everything, Network, RowSelector
from p2ptrain.aggregate.sorting_networks import ordered


class WinsorizedMean(CoordinateRule):
    """Coordinate-wise winsorized mean (Dixon, Annals of Mathematical Statistics 31, 1960; Tukey 1962): the `depth`
    lowest values become the next lowest, the `depth` highest the next highest, and all n are averaged.

    `depth` None: f. More than f leans towards the median, and loses no vote. Of n vectors at most (n - 1) // 2 are
    replaced at each end, which is the median: a round that is smaller than 2 depth + 1 still has a result. Less than f
    would leave a liar's value in the average, and is refused.

    Guarantee: with n >= 2f + 1 and at most f liars every coordinate lies within the honest values' range, whatever the
    liars send, infinities included. NaN counts as +infinity. More than `depth` such values in a coordinate make the
    result not finite there. Breakdown point 1/2.
    Cost: one pass, O(n log^2 n) vector operations (it needs the ends in order), n and a chunk of scratch memory.
    """

    name = "winsorized_mean"

    def __init__(
        self,
        *,
        f: int = 1,
        depth: Annotated[int | None, "How many values are replaced at each end, f or more; None: f."] = None,
    ) -> None:
        super().__init__(f=f)
        if depth is not None and depth < max(1, f):
            least = "1 or more" if f < 1 else f"f or more, which is {f}"
            raise ValueError(f"{self.name}: depth must be {least}, not {depth}")
        self.depth = depth

    def minimum(self) -> int:
        """2f + 1: the honest are more than the liars."""
        return 2 * self.f + 1

    def _selector(self, n: int) -> RowSelector:
        depth = min(self.f if self.depth is None else self.depth, (n - 1) // 2)
        return _PulledIn(n, depth) if depth else Everything(n)


class _PulledIn:
    """All n values, of which `depth` at each end are replaced by the next ones. n >= 2 depth + 1."""

    def __init__(self, n: int, depth: int) -> None:
        self.sort = Network(ordered(n, depth + 1, 0))
        self.depth = depth
        self.kept = n
        self.scratch = self.sort.scratch

    def __call__(self, x_nc: torch.Tensor, scratch_rc: torch.Tensor) -> torch.Tensor:
        """Return the values that stay of (n, c), as (kept, c)."""
        sorted_nc = self.sort(x_nc, scratch_rc)
        *low_kc, least_c = sorted_nc[: self.depth + 1].unbind(0)
        most_c, *high_kc = sorted_nc[self.kept - self.depth - 1 :].unbind(0)
        for low_c, high_c in zip(low_kc, high_kc, strict=True):
            low_c.copy_(least_c)
            high_c.copy_(most_c)
        return sorted_nc
