"""From kept models to times: when a curve came down to a loss, and when it would have."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Point:
    """The held-out loss of a model."""

    seconds: float
    """Since the start."""
    step: int
    loss: float


def seconds_to(curve: Sequence[Point], loss: float) -> float | None:
    """Return when the curve first is at `loss` or below, by a straight line between two points; None: it never is."""
    return _crossing([(point.seconds, point.loss) for point in curve], loss)


def steps_to(curve: Sequence[Point], loss: float) -> float | None:
    """Return after how many steps the curve first is at `loss` or below; None: it never is."""
    return _crossing([(float(point.step), point.loss) for point in curve], loss)


def stretched(curve: Sequence[Point], seconds_of: Callable[[float], float]) -> list[Point]:
    """Return the curve of the same steps, where so many take `seconds_of` of them: for a contestant whose loss by step
    is the same on every link."""
    return [
        Point(seconds=seconds_of(point.step) if point.step else 0.0, step=point.step, loss=point.loss)
        for point in curve
    ]


def _crossing(points: Sequence[tuple[float, float]], loss: float) -> float | None:
    before: tuple[float, float] | None = None
    for x, y in points:
        if y <= loss:
            if before is None or before[1] == y:
                return x
            return before[0] + (x - before[0]) * (before[1] - loss) / (before[1] - y)
        before = (x, y)
    return None
