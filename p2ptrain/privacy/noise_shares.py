"""Noise that the members of a secure sum share out, so that the sum has enough and no single vector need (2102.06387).

Of n members t = floor(2n / 3) + 1 stay at least, or nothing is opened. Of those that stay up to n - t may be liars, who
add no noise or know their own: h = 2 t - n are honest. Each adds discrete Gaussian noise of variance (noise clip)^2 / h
to its whole numbers. Then the sum hides each honest member's with noise of `noise` times `clip`, and more where more
are honest.
"""

import math
from dataclasses import dataclass
from typing import Final

from p2ptrain.privacy.accounting.discrete_sums import counted_noise

LEAST_SHARE: Final = 4.0
"""Standard deviation of a share, in whole numbers: from here on a sum of shares counts as one Gaussian."""

MOST_MEMBERS: Final = 64
MOST_VALUES: Final = 1 << 40
"""More than any model has: with a share of 4 they cost less than fp64 can tell."""


@dataclass(frozen=True)
class NoiseShares:
    """What honest members add together. ValueError where one of the two is not a finite number above 0."""

    noise: float
    """Standard deviation of the noise of the honest members' sum, over `clip`."""
    clip: float
    """Largest L2 norm of what one member adds without noise."""

    def __post_init__(self) -> None:
        for option, value in (("sum_noise", self.noise), ("sum_clip", self.clip)):
            if not 0 < value < math.inf:  # false for nan, too
                raise ValueError(f"{option} must be a number above 0, not {value}")

    def deviation(self, members: int) -> float:
        """Return the standard deviation of one member's share in a group of so many."""
        return self.noise * self.clip / math.sqrt(honest_members(members))


def honest_members(members: int) -> int:
    """Return of how many members' noise a sum has some at least: 2 t - n, t those without whom nothing is opened."""
    return 2 * (2 * members // 3 + 1) - members


def accounted_noise(noise: float) -> float:
    """Return as how much Gaussian noise, over the clipping norm, that of a sum counts, in the worst group there is."""
    return counted_noise(noise, deviation=LEAST_SHARE, members=MOST_MEMBERS, values=MOST_VALUES)
