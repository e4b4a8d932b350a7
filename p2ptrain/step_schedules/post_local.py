"""Post-local SGD (1808.07217): synchronous at first, H = 1, then rounds of many steps.

The first steps decide most, and there averaging at every step costs few steps of the run. The paper turns to local
steps where the learning rate first falls, after half of its epochs. At the same number of rounds that cannot be had:
rounds of one step would take all there are. So the share is one of rounds, which is possible for every H: with half of
60 rounds of 20 steps, 30 rounds have one step each and the others 39.
"""

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Annotated


class PostLocal:
    """Gives a share of the rounds one step each, the first ones, and spreads the other steps evenly over the rest.
    ValueError for a share that is not in [0, 1)."""

    name = "post_local"
    least_inner_steps = 1

    def __init__(
        self, *, synchronous_share: Annotated[float, "Share of the rounds that have one step, the first ones."] = 0.5
    ) -> None:
        if not 0 <= synchronous_share < 1:
            raise ValueError(f"post_local: synchronous_share must be at least 0 and below 1, not {synchronous_share}")
        self.synchronous_share = synchronous_share

    def starts(self, rounds: int, inner_steps: int, rates: Callable[[], Sequence[int]]) -> Sequence[int]:
        """Return the steps at which rounds begin, and at last that at which the run ends."""
        single = min(int(self.synchronous_share * rounds), rounds - 1)  # one product, the same everywhere
        left = rounds - single
        steps, longer = divmod(rounds * inner_steps - single, left)
        lengths = [1] * single + [steps] * (left - longer) + [steps + 1] * longer
        return [0, *accumulate(lengths)]
