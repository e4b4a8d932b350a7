"""QSR, the quadratic synchronization rule (2310.14423): H grows as the learning rate falls, by its inverse square.

    H = max(least_inner_steps, (c / rate)^2), rate that at the round's start

In the paper H is rounded down, c is tuned, and the number of rounds is what comes of it. Here rounds and steps are
given, and c is what makes them fit. As there, a warm-up counts as the peak: H must not be largest at the start.

Claimed there: better test accuracy of image classifiers than with a fixed H, at fewer exchanges. What came of it here,
at equal bytes and on text, is in docs/benchmarks.md. The last round alone has an eighth to a fourth of the run's steps.
"""

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import Annotated, Final

FRACTION: Final = 20
"""Bits behind the point of a length in steps, while c is looked for."""

COARSER: Final = 32
"""Bits that a rate's square does without: numbers then stay small, and rates below 1e-5 of the peak count as that."""


class QuadraticSynchronizationRule:
    """Lengthens rounds as the rate falls; with a constant rate all are alike. ValueError for least_inner_steps below 1.

    Cost: one pass over the run's steps, and some 60 over its rounds, once.
    """

    name = "qsr"

    def __init__(
        self,
        *,
        least_inner_steps: Annotated[int, "Fewest steps of a round (H_base): what the link hides at least."] = 1,
    ) -> None:
        if least_inner_steps < 1:
            raise ValueError(f"qsr: least_inner_steps must be at least 1, not {least_inner_steps}")
        self.least_inner_steps = least_inner_steps

    def starts(self, rounds: int, inner_steps: int, rates: Callable[[], Sequence[int]]) -> Sequence[int]:
        """Return the steps at which rounds begin, and at last that at which the run ends. Rounds never become
        shorter."""
        squares = [max(1, rate * rate >> COARSER) for rate in rates()]
        total = rounds * inner_steps << FRACTION
        low, high = 0, ((inner_steps << FRACTION) + 1) * squares[0]  # of c^2: all rounds are the mean or longer
        while low < high:  # the largest with which the steps do not end before the rounds
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self._ends(rounds, squares, middle, total)[-1] <= total else (low, middle - 1)
        ends = self._ends(rounds, squares, low, total)
        ends[-1] = total
        # Rounding down where a round ends keeps the sum, and makes lengths one longer or shorter than they should be,
        # by turns. In order they are as near, and never fall.
        lengths = sorted((later >> FRACTION) - (sooner >> FRACTION) for sooner, later in pairwise(ends))
        return [0, *accumulate(lengths)]

    def _ends(self, rounds: int, squares: Sequence[int], c_squared: int, total: int) -> list[int]:
        """Return where rounds begin and the last ends with this c, in steps of FRACTION bits; cut off behind
        `total`."""
        ends, least = [0], self.least_inner_steps << FRACTION
        for _ in range(rounds):
            at = ends[-1]
            if at >= total:
                return [*ends, at + 1]
            ends.append(at + max(least, c_squared // squares[at >> FRACTION]))
        return ends
