"""Epsilon of Poisson-sampled Gaussian sums by Renyi differential privacy (Mironov, Talwar, Zhang, 1908.10530).

One sum has the divergence log(A(alpha)) / (alpha - 1) at the order alpha, where for the noise s and the rate q

    A(alpha) = mean over z ~ N(0, s^2) of ((1 - q) + q exp((2 z - 1) / (2 s^2)))^alpha

Divergences of releases add up, whatever their noise and rate. The sum becomes (epsilon, delta) by the bound of Canonne,
Kamath, Steinke (2004.00010, proposition 12), and the best order counts. All of it is numpy: no accounting package is
imported by a node (docs/decisions/0122).
"""

import math
from collections.abc import Iterable
from functools import lru_cache
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from p2ptrain.privacy.base import Release

Orders_n: TypeAlias = NDArray[np.float64]
"""One value for each order."""

_FRACTIONAL: Final = np.arange(11, 110) / 10.0
_WHOLE: Final = np.array([*range(12, 65), 80, 96, 128, 192, 256, 384, 512, 768, 1024], dtype=np.float64)

ORDERS: Final[Orders_n] = np.concatenate([_FRACTIONAL, _WHOLE])
"""The orders of opacus 1.6 (1.1 to 10.9, then whole ones to 63) and larger ones, which are the best where the noise is
large."""

LEAST_NOISE: Final = 0.05
"""Noise below which sampling counts for nothing: then one release spends more than 80 at any usual delta, and the sum
below would need a mesh of millions."""

MOST_NOISE: Final = 1e100
"""Noise above which none is counted for more: its square is still a number, and nothing is spent."""

_TAILS: Final = 12.0
"""Standard deviations beyond which the mean above has nothing: exp(-72)."""

_MESH: Final = (0.25, 0.3)
"""Width of the mesh over s, and over s^2: the trapezoid rule is exact to 1e-15 for s / 4, and the integrand's poles are
pi s^2 away from the real line."""


class RenyiAccountant:
    """Adds up what releases spend. It forgets their order, which counts for nothing."""

    def __init__(self, releases: Iterable[Release] = ()) -> None:
        self._spent_n: Orders_n = sum(map(_divergences, releases), np.zeros_like(ORDERS))

    def add(self, release: Release) -> None:
        """Count a release. Raises ValueError for noise, rate or count that cannot be."""
        self._spent_n = self._spent_n + _divergences(release)

    def epsilon(self, delta: float, ahead: Iterable[Release] = ()) -> float:
        """Return what is spent, with what `ahead` would spend. Raises ValueError for a delta that is none."""
        return _epsilon(sum(map(_divergences, ahead), self._spent_n), delta)


def epsilon_of(releases: Iterable[Release], delta: float) -> float:
    """Return the epsilon of all of these together at `delta`; 0 of none."""
    return RenyiAccountant(releases).epsilon(delta)


def noise_for(epsilon: float, delta: float, *, rate: float, steps: int, within: float = 1e-3) -> float:
    """Return the least noise, to `within` of itself, with which so many sums spend at most `epsilon`. Raises ValueError
    where no noise below a million does."""

    def spends(noise: float) -> float:
        return epsilon_of([Release(mechanism="", noise=noise, rate=rate, count=steps)], delta)

    if not 0 < epsilon < math.inf:
        raise ValueError(f"epsilon must be a number above 0, not {epsilon:g}")
    low, high = LEAST_NOISE, 1.0
    while spends(high) > epsilon:
        low, high = high, 2 * high
        if high > 1e6:
            raise ValueError(f"no noise makes {steps} steps spend {epsilon:g} at most: give a larger epsilon or delta")
    while high - low > within * high:
        middle = (low + high) / 2
        low, high = (middle, high) if spends(middle) > epsilon else (low, middle)
    return high


def _divergences(release: Release) -> Orders_n:
    if not 0 < release.noise < math.inf:  # false for nan, too
        raise ValueError(f"noise must be a number above 0, not {release.noise}")
    if not 0 < release.rate <= 1:
        raise ValueError(f"a rate is above 0 and at most 1, not {release.rate}")
    if release.count < 0:
        raise ValueError(f"a count is 0 or more, not {release.count}")
    spent_n: Orders_n = release.count * _of_one(float(release.noise), float(release.rate))
    return spent_n


@lru_cache(maxsize=256)
def _of_one(noise: float, rate: float) -> Orders_n:
    """Return the divergence of one sum at each order. A run has few noises and rates: two milliseconds each."""
    noise = min(noise, MOST_NOISE)
    if rate == 1 or noise < LEAST_NOISE:
        with np.errstate(divide="ignore", over="ignore"):  # infinite, where the noise is as good as none
            whole_n: Orders_n = ORDERS / (2 * noise**2)
        return whole_n
    logs_n = np.concatenate([_logs_by_mesh(noise, rate), _logs_by_binomials(noise, rate)])
    spent_n: Orders_n = np.maximum(logs_n, 0.0) / (ORDERS - 1)
    spent_n.setflags(write=False)  # shared by all who ask
    return spent_n


def _logs_by_mesh(noise: float, rate: float) -> Orders_n:
    """Return log A of the fractional orders, by the trapezoid rule."""
    width = min(_MESH[0] * noise, _MESH[1] * noise**2)
    z_m = np.arange(-_TAILS * noise, _FRACTIONAL[-1] + _TAILS * noise, width)
    density_m = -(z_m**2) / (2 * noise**2) + math.log(width / (noise * math.sqrt(2 * math.pi)))
    ratio_m = np.logaddexp(math.log1p(-rate), math.log(rate) + (2 * z_m - 1) / (2 * noise**2))
    return np.array([_log_sum(density_m + order * ratio_m) for order in _FRACTIONAL])


def _logs_by_binomials(noise: float, rate: float) -> Orders_n:
    """Return log A of the whole orders, by their binomial sums (1908.10530, section 3.3)."""
    largest = int(_WHOLE[-1])
    log_factorials = np.array([math.lgamma(number + 1) for number in range(largest + 1)])
    logs = []
    for order in map(int, _WHOLE):
        k = np.arange(order + 1)
        chosen = log_factorials[order] - log_factorials[k] - log_factorials[order - k]
        logs.append(
            _log_sum(chosen + (order - k) * math.log1p(-rate) + k * math.log(rate) + (k * (k - 1.0)) / (2 * noise**2))
        )
    return np.array(logs)


def _log_sum(logs_m: NDArray[np.float64]) -> float:
    largest = float(logs_m.max())
    return largest + math.log(float(np.exp(logs_m - largest).sum()))


def _epsilon(spent_n: Orders_n, delta: float) -> float:
    if not 0 < delta < 1:
        raise ValueError(f"delta is above 0 and below 1, not {delta}")
    if not spent_n.any():
        return 0.0
    bounds_n = spent_n + np.log1p(-1 / ORDERS) - (math.log(delta) + np.log(ORDERS)) / (ORDERS - 1)
    return max(0.0, float(bounds_n.min()))
