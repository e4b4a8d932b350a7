"""Minimum-diameter averaging: the mean of the n - f vectors whose largest distance is the least."""

import torch

from p2ptrain.aggregate.geometric import GeometricRule, mean_of
from p2ptrain.aggregate.geometry import Geometry

MAX_F = 16
"""The search branches where somebody is far from two others or more: at most 1.62^f branches, some thousands for 16."""


class MDA(GeometricRule):
    """Minimum-diameter averaging (El-Mhamdi et al., 1905.03853). Exact, for f up to 16; a larger f is refused.

    Leaving out f vectors so that no pair farther apart than t is left means covering the edges of a graph by f
    vertices. The search for that branches on f alone, where trying all subsets would take (n choose f).

    Guarantee: with n >= 2f + 1 and at most f liars the diameter of what is averaged is at most the honest ones', and
    an honest vector is among it. Breakdown point 1/2.
    Cost: one Gram matrix, O(n^2 d), a sum, and the search, well under a second.
    """

    name = "mda"

    def __init__(self, *, f: int = 1) -> None:
        super().__init__(f=f)
        if f > MAX_F:
            raise ValueError(f"{self.name}: f must be at most {MAX_F}, since the search grows with it, not {f}")

    def minimum(self) -> int:
        """2f + 1: the honest are more than the liars."""
        return 2 * self.f + 1

    def weigh(self, geometry: Geometry) -> torch.Tensor:
        """Return a weight for each row, float64 (n,), from the rows' geometry."""
        square_nn = geometry.squares()
        diameters = sorted(set(square_nn.flatten().tolist()))
        low, high = 0, len(diameters) - 1  # of the longest all remain
        best = self._within(square_nn, diameters[high])
        while low < high:
            middle = (low + high) // 2
            found = self._within(square_nn, diameters[middle])
            if found is None:
                low = middle + 1
            else:
                high, best = middle, found
        assert best is not None
        return mean_of(torch.tensor(self._thinned(square_nn, best)), geometry.n)

    def _within(self, square_nn: torch.Tensor, diameter: float) -> list[int] | None:
        """The n - f vectors or more that remain when no pair is farther apart than that; None when too few do."""
        far = [sum(1 << column for column, square in enumerate(row) if square > diameter) for row in square_nn.tolist()]
        left = _uncovered(far, (1 << len(far)) - 1, self.f)
        return None if left is None else [index for index in range(len(far)) if left >> index & 1]

    def _thinned(self, square_nn: torch.Tensor, chosen: list[int]) -> list[int]:
        """Return n - f rows, after leaving out again and again the row farthest from the others in sum."""
        while len(chosen) > len(square_nn) - self.f:
            sums = square_nn[chosen][:, chosen].sum(dim=1)
            chosen = chosen[: int(sums.argmax())] + chosen[int(sums.argmax()) + 1 :]
        return chosen


def _uncovered(far: list[int], alive: int, budget: int) -> int | None:
    """What remains (bits) when at most `budget` of the alive go so that nobody's far ones remain with it; or None."""
    members = [index for index in range(len(far)) if alive >> index & 1]
    worst = max(members, key=lambda index: (far[index] & alive).bit_count(), default=None)
    if worst is None or not far[worst] & alive:
        return alive
    if budget == 0:
        return None
    enemies = far[worst] & alive
    if enemies.bit_count() == 1:  # pairs that share nobody: one of each has to go, and there is nothing to try
        return _without_pairs(far, alive, budget)
    without = _uncovered(far, alive & ~(1 << worst), budget - 1)
    if without is not None or enemies.bit_count() > budget:
        return without
    return _uncovered(far, alive & ~enemies, budget - enemies.bit_count())


def _without_pairs(far: list[int], alive: int, budget: int) -> int | None:
    """What remains when the first of each pair goes; None when they are more than the budget."""
    for index in range(len(far)):
        if alive >> index & 1 and far[index] & alive:
            alive &= ~(1 << index)
            budget -= 1
    return alive if budget >= 0 else None
