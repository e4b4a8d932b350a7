"""When a node is there: intervals of virtual time, drawn from its session class."""

import math
import random
from collections.abc import Iterator
from typing import TypeAlias

from node.simulation.scenario import DiurnalSession, SessionClass, TraceSession, WeibullSession

Interval: TypeAlias = tuple[float, float]
"""From and to, in virtual seconds."""

ALWAYS: Interval = (0.0, math.inf)
DAY_H = 24.0


def intervals(
    session: SessionClass | None, rng: random.Random, *, until_s: float, day_s: float, local_h: float
) -> list[Interval]:
    """Return when a node is there, in order and apart, up to `until_s`. `local_h`: its local hour at time 0."""
    match session:
        case None:
            return [ALWAYS]
        case TraceSession():
            return [(begin, end) for begin, end in session.intervals_s if begin < until_s]
        case WeibullSession():
            return list(_weibull(session, rng, until_s))
        case DiurnalSession():
            return _diurnal(session, rng, until_s, day_s, local_h)


def _weibull(session: WeibullSession, rng: random.Random, until_s: float) -> Iterator[Interval]:
    """All begin there: who is away at the start would not be a member yet."""
    now = 0.0
    while now < until_s:
        end = now + rng.weibullvariate(session.on_scale_s, session.on_shape)
        yield now, end
        now = end + rng.weibullvariate(session.off_scale_s, session.off_shape)


def _diurnal(
    session: DiurnalSession, rng: random.Random, until_s: float, day_s: float, local_h: float
) -> list[Interval]:
    shift_h = rng.uniform(-session.spread_h, session.spread_h)
    length_h = (session.to_h - session.from_h) % DAY_H
    if length_h == 0:  # from 0 to 24
        return [ALWAYS]
    # Two days before: where local time is behind UTC, that is the day which may still go on.
    first_h = session.from_h + shift_h - local_h - 2 * DAY_H
    found = []
    for day in range(math.ceil(until_s / day_s) + 4):
        begin, end = ((first_h + day * DAY_H + more) / DAY_H * day_s for more in (0.0, length_h))
        if end > 0 and begin < until_s:
            found.append((max(0.0, begin), end))
    return found
