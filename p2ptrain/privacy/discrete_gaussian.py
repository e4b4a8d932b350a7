"""Discrete Gaussian noise: whole numbers k with probability proportional to exp(-k^2 / (2 s^2)) (2004.00010).

Whole numbers may be summed under masks, and no rounding is in them that an accountant would have to look at. Drawn by
inversion: the number of probabilities P(|K| <= k) that a uniform number is not below is |K|, and one more bit is its
sign. The table has 256 bits an entry, worked out in whole numbers. Of a uniform number 63 bits are compared at a time,
in numpy; where these equal an entry's first 63, 128 more are drawn and compared in Python. What is drawn so differs
from the discrete Gaussian by less than 2^-160 in total variation: not exact, and beyond what any delta can tell.

The method in 2004.00010 is exact, and draws some thousands of numbers a second.
"""

import os
from bisect import bisect_right
from collections.abc import Callable
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import lru_cache
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

RandomBytes: TypeAlias = Callable[[int], bytes]
"""Returns so many bytes that nobody can foretell."""

LEAST_DEVIATION: Final = 0.1
MOST_DEVIATION: Final = float(1 << 14)
"""Standard deviations that there are tables for: the largest has 310,000 entries, some 20 MB."""

AT_ONCE: Final = 1 << 20
"""Numbers drawn at a time: some 40 MB of temporaries."""

_PRECISION: Final = 256
_DIGITS: Final = 90
"""Of a decimal number: more than 256 bits."""

_FIRST: Final = 63
_MORE: Final = 128
_TIES_BYTES: Final = _MORE // 8


class DiscreteGaussian:
    """The distribution with the parameter s = `deviation`, which above 1 is its standard deviation to 7 digits.
    ValueError where there is no table for it."""

    def __init__(self, deviation: float) -> None:
        if not LEAST_DEVIATION <= deviation <= MOST_DEVIATION:  # false for nan, too
            raise ValueError(f"a deviation is {LEAST_DEVIATION:g} to {MOST_DEVIATION:g}, not {deviation:g}")
        self.deviation = deviation
        self._whole, self._first = _table(deviation)

    def draw(self, count: int, random_bytes: RandomBytes = os.urandom) -> npt.NDArray[np.int64]:
        """Return `count` independent numbers (count,)."""
        drawn_n = np.empty(count, np.int64)
        for start in range(0, count, AT_ONCE):
            drawn_n[start : start + AT_ONCE] = self._draw(min(AT_ONCE, count - start), random_bytes)
        return drawn_n

    def _draw(self, count: int, random_bytes: RandomBytes) -> npt.NDArray[np.int64]:
        word_n = np.frombuffer(random_bytes(8 * count), "<u8")
        uniform_n = word_n >> np.uint64(1)
        size_n = np.searchsorted(self._first, uniform_n, side="left").astype(np.int64)
        last_n = np.minimum(size_n, self._first.size - 1)
        for at in np.flatnonzero(self._first[last_n] == uniform_n):
            more = int.from_bytes(random_bytes(_TIES_BYTES), "little")
            size_n[at] = bisect_right(self._whole, int(uniform_n[at]) << _MORE | more, lo=int(size_n[at]))
        return np.where(word_n & np.uint64(1), -size_n, size_n)


@lru_cache(maxsize=4)
def _table(deviation: float) -> tuple[list[int], npt.NDArray[np.uint64]]:
    """P(|K| <= k) for k = 0, 1, ... in units of 2^-191, and the first 63 bits of each."""
    weights = _weights(Fraction(deviation) ** 2)
    total = 2 * sum(weights) - weights[0]
    so_far, whole = -weights[0], []
    for weight in weights:
        so_far += 2 * weight
        whole.append((so_far << _FIRST + _MORE) // total)
    return whole, np.array([each >> _MORE for each in whole], np.uint64)


def _weights(variance: Fraction) -> list[int]:
    """exp(-k^2 / (2 s^2)) for k = 0, 1, ... in units of 2^-256, as far as it is one or more. Each is the one before it
    times exp(-(2 k + 1) / (2 s^2)), which falls by exp(-1 / s^2)."""
    factor, fall = _exp(-1 / (2 * variance)), _exp(-1 / variance)
    weight, found = 1 << _PRECISION, []
    while weight:
        found.append(weight)
        weight = weight * factor >> _PRECISION
        factor = factor * fall >> _PRECISION
    return found


def _exp(exponent: Fraction) -> int:
    with localcontext() as context:
        context.prec = _DIGITS
        power = (Decimal(exponent.numerator) / Decimal(exponent.denominator)).exp()
        return int(power * (1 << _PRECISION))
