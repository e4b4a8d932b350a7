"""Means with 95% intervals over few seeds."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Estimate:
    """A mean; `half`, half of its interval's width, is None of one value alone."""

    mean: float
    half: float | None


def estimate(values: Sequence[float]) -> Estimate | None:
    """Return the mean of the values and its interval, by Student's t with n - 1 degrees of freedom. None of none."""
    if not values:
        return None
    mean = statistics.fmean(values)
    if len(values) == 1:
        return Estimate(mean, None)
    return Estimate(mean, quantile(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values)))


def quantile(freedom: int) -> float:
    """Return how many standard errors of a mean, to both sides, hold it with CONFIDENCE."""
    from scipy.special import stdtrit  # takes a tenth of a second

    return float(stdtrit(freedom, (1 + CONFIDENCE) / 2))


def behind(losses: Sequence[float], references: Sequence[float]) -> Estimate | None:
    """Return by how many percent losses are above the references', pair by pair: with the same seed both had the same
    initial model and the same examples, so that what these do to both is no part of the difference."""
    return estimate([100 * (loss / reference - 1) for loss, reference in zip(losses, references, strict=True)])
