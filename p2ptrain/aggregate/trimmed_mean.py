"""Trimmed mean: in every coordinate drop the f lowest and the f highest values, and average the rest.

Nothing is sorted: sorting_networks.py leaves out every comparison that the sum of the middle does not need. And nothing
is subtracted: the total minus the extremes would be shorter, and wrong beside a liar's 1e30.
"""

from p2ptrain.aggregate.coordinate import CoordinateRule, Everything, Network, RowSelector
from p2ptrain.aggregate.sorting_networks import middle


class TrimmedMean(CoordinateRule):
    """Coordinate-wise trimmed mean (Yin et al., 1803.01498).

    Guarantee: with n >= 2f + 1 and at most f liars every coordinate lies within the honest values' range, whatever the
    liars send, infinities included. NaN counts as +infinity. More than f such values in a coordinate make the result
    not finite there. Breakdown point 1/2.
    Cost: one pass, O(n log n) vector operations at most and O(n log f) for small f; a few chunks of scratch memory.
    """

    name = "trimmed_mean"

    def minimum(self) -> int:
        """2f + 1: of fewer nothing would be left."""
        return 2 * self.f + 1

    def averages(self, n: int) -> int:
        """Return n - 2f, at least 0."""
        return max(0, n - 2 * self.f)

    def _selector(self, n: int) -> RowSelector:
        return Network(middle(n, self.f)) if self.f else Everything(n)
