"""How many inner steps a round should have: as many as the own speed gives, or as the link needs to be hidden.

Pure functions of what was measured; the runtime calls them between rounds. Times are in seconds, payloads in bytes.
"""

import math
from collections.abc import Sequence
from fractions import Fraction
from statistics import median_low

WORTH_A_CHANGE = 0.9
"""A tenth: the seconds of a step waver by less on an idle machine."""

MAX_INNER_STEPS = 500
"""DiLoCo's H (2311.08105), and the largest that is worth its loss: a link that needs more is too slow for the model."""


def dylu_steps(inner_steps: int, *, speed: float, fastest: float) -> int:
    """DyLU (2401.09135): floor(inner_steps * speed / fastest), at least 1: slower nodes do fewer steps, and all rounds
    take the same time. Speeds are in steps per second, `fastest` the largest among the members, own included.

    ValueError unless both are positive numbers. A speed above `fastest`, which was measured earlier, counts as it.
    """
    _check_count("inner_steps", inner_steps)
    _check_positive("speed", speed)
    _check_positive("fastest", fastest)
    # In fractions: rounding must not cost the fastest node a step.
    return max(1, math.floor(inner_steps * Fraction(min(speed, fastest)) / Fraction(fastest)))


def exchange_seconds(
    payload_bytes: float, *, link_bytes_per_s: float, copies: int = 1, latency_s: float = 0.0
) -> float:
    """Return how long a round's exchange takes: `copies` of the payload through the link, after the latency.

    `copies` is the number of neighbours that fetch the payload, or that send one, by whichever direction is slower.
    ValueError on a link without bandwidth and on negative numbers.
    """
    _check_positive("link_bytes_per_s", link_bytes_per_s)
    for name, value in (("payload_bytes", payload_bytes), ("copies", copies), ("latency_s", latency_s)):
        if not 0 <= value < math.inf:
            raise ValueError(f"{name} must be a number >= 0, not {value}")
    return latency_s + copies * payload_bytes / link_bytes_per_s


def utilization(inner_steps: int, *, step_seconds: float, exchange_s: float, overlap_steps: int | None = None) -> float:
    """Return the share of time in which a node computes, when it trains `inner_steps` a round and waits for whatever of
    the exchange outlasts the first `overlap_steps` of the next round (None: all of them; 0: nothing overlaps)."""
    hidden = inner_steps if overlap_steps is None else min(overlap_steps, inner_steps)
    computing = inner_steps * step_seconds
    return computing / (computing + max(0.0, exchange_s - hidden * step_seconds))


def auto_h(
    *,
    step_seconds: float,
    link_bytes_per_s: float,
    payload_bytes: float,
    latency_s: float = 0.0,
    copies: int = 1,
    overlap_steps: int | None = None,
    wanted_utilization: float = 0.95,
    maximum: int = MAX_INNER_STEPS,
) -> int:
    """Return the smallest number of inner steps at which the link costs no more than `1 - wanted_utilization` of the
    time; `maximum` when none does. Averaging gains more from a small H than from a finer codec, so more is never worth
    it.

    See `exchange_seconds` for the link and `utilization` for the overlap. 0.95 is what published runs over slow links
    reach (SparseLoCo's 72B: 94.5%). ValueError on measurements that cannot be.
    """
    _check_positive("step_seconds", step_seconds)
    _check_count("maximum", maximum)
    if not 0 < wanted_utilization <= 1:
        raise ValueError(f"wanted_utilization must be in (0, 1], not {wanted_utilization}")
    if overlap_steps is not None and overlap_steps < 0:
        raise ValueError(f"overlap_steps must not be negative, not {overlap_steps}")
    exchange_s = exchange_seconds(payload_bytes, link_bytes_per_s=link_bytes_per_s, copies=copies, latency_s=latency_s)
    low, high = 1, maximum
    while low < high:  # utilization never falls as steps grow
        middle = (low + high) // 2
        reached = utilization(middle, step_seconds=step_seconds, exchange_s=exchange_s, overlap_steps=overlap_steps)
        low, high = (low, middle) if reached >= wanted_utilization else (middle + 1, high)
    return low


def agreed(current: int, wanted: Sequence[int]) -> int:
    """Return the next round's number of steps: `current`, unless all of `wanted`, what the last rounds' measurements
    asked for, are a tenth or more above it, or all below; then their low median. Measurements that waver leave the
    number where it is."""
    _check_count("current", current)
    for each in wanted:
        _check_count("wanted", each)
    above, below = WORTH_A_CHANGE * min(wanted) >= current, max(wanted) <= WORTH_A_CHANGE * current
    return median_low(wanted) if above or below else current


def _check_positive(name: str, value: float) -> None:
    if not 0 < value < math.inf:
        raise ValueError(f"{name} must be a positive number, not {value}")


def _check_count(name: str, value: int) -> None:
    if value < 1:
        raise ValueError(f"{name} must be at least 1, not {value}")
