"""Mean around median: in every coordinate average the n - f values nearest to the median.

Of n sorted values those are a window of n - f neighbours. Which one is settled by f pairs, the t-th lowest with the
t-th of the last f: they are n - f places apart, so exactly one of each pair is in the window, and it is the nearer
one. The n - 2f values between are always in it.
"""

import torch

from p2ptrain.aggregate.coordinate import CoordinateRule, Everything, Network, RowSelector
from p2ptrain.aggregate.sorting_networks import ordered


class MeaMed(CoordinateRule):
    """Mean around median (Xie et al., 1802.10116). Of two equally far from the median the lower stays.

    Guarantee: with n >= 2f + 1 and at most f liars the median lies within the honest values' range, and no value that
    is averaged lies farther from it than some honest one. NaN counts as +infinity. Breakdown point 1/2.
    Cost: one pass, O(n log^2 n) vector operations (it needs the values in order), n and three chunks of scratch memory.
    """

    name = "meamed"

    def minimum(self) -> int:
        """2f + 1: the honest are more than the liars."""
        return 2 * self.f + 1

    def _selector(self, n: int) -> RowSelector:
        return _Nearest(n, self.f) if self.f else Everything(n)


class _Nearest:
    def __init__(self, n: int, f: int) -> None:
        self.sort = Network(ordered(n, f, 2 - n % 2))
        self.f = f
        self.kept = n - f
        self.scratch = self.sort.scratch + 3

    def __call__(self, x_nc: torch.Tensor, scratch_rc: torch.Tensor) -> torch.Tensor:
        """See Sieve."""
        n = len(x_nc)
        self.sort(x_nc, scratch_rc[:-3])
        *values, gap_c, below_c, above_c = scratch_rc.unbind(0)
        *bits, _, _, mask_c = scratch_rc.view(torch.int32).unbind(0)
        # With a and b in the middle, the lower one is farther off when a + b > low + high. Seen from a nothing is lost:
        # differences of numbers close together are exact.
        middle_c = values[(n - 1) // 2]
        torch.sub(values[n // 2], middle_c, out=gap_c)
        for low in range(self.f):
            high = low + n - self.f
            torch.sub(values[low], middle_c, out=below_c)
            torch.sub(values[high], middle_c, out=above_c).add_(below_c).sub_(gap_c)
            # A choice by bits: the sign, drawn over the word, takes the higher one. torch.where is ten times as slow.
            mask_c.bitwise_right_shift_(31)
            bits[high].bitwise_xor_(bits[low]).bitwise_and_(mask_c).bitwise_xor_(bits[low])
        return scratch_rc[self.f : n]
