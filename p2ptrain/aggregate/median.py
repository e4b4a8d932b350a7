"""The coordinate-wise median: the trimmed mean that trims all it can."""

from p2ptrain.aggregate.coordinate import CoordinateRule, Everything, Network, RowSelector
from p2ptrain.aggregate.sorting_networks import middle


class Median(CoordinateRule):
    """The middle value of every coordinate, or the mean of the two in the middle (Yin et al., 1803.01498).

    Guarantee: with n >= 2f + 1 and at most f liars every coordinate lies within the honest values' range. NaN counts as
    +infinity. Breakdown point 1/2. Unlike the trimmed mean it does not profit from a small f: its variance with honest
    Gaussian inputs is pi/2 times the mean's for large n.
    Cost: one pass, O(n log^2 n) vector operations; a few chunks of scratch memory.
    """

    name = "median"

    def minimum(self) -> int:
        """2f + 1: the honest are more than the liars."""
        return 2 * self.f + 1

    def _selector(self, n: int) -> RowSelector:
        return Network(middle(n, (n - 1) // 2)) if n > 2 else Everything(n)
