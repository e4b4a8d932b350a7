"""What a task measures beside its loss: `metrics(model, batch)`, evaluated on the held-out examples with it.

Names and their number are bounded, for they become names of curves and labels of series wherever a node is watched.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Final, TypeAlias

from torch import nn

from p2ptrain.tasks.base import Batch
from p2ptrain.tasks.calling import TaskFaultError, place_of_method

MAX_METRICS: Final = 16
"""Of a task: as many curves as a page shows without being searched. Chosen."""

MAX_NAME_CHARS: Final = 40
"""Of a metric's name: a column of a terminal, half of which it fills. Chosen."""

MAX_UNIT_CHARS: Final = 16
"""Of a unit, such as "%" or "nats per byte". Chosen."""

Metrics: TypeAlias = Callable[[nn.Module, Batch], Mapping[str, float]]


@dataclass(frozen=True, kw_only=True)
class Measures:
    """What an evaluation came to: means over the held-out predictions."""

    loss: float
    own: Mapping[str, float] = field(default_factory=dict)
    """The task's own metrics by name; those that are not finite are left out."""
    fault: str = ""
    """Why there are none, where the task failed at them: training goes on without."""


def own_metrics(task: object) -> Metrics | None:
    """Return the task's `metrics`; None where it has none. A task that is made of another passes it on."""
    found = getattr(task, "metrics", None)
    return found if callable(found) else None


def metric_units(task: object) -> dict[str, str]:
    """By metric, the unit that the task names in `units`; what is too long or too much is left out."""
    units = getattr(task, "units", None)
    if not isinstance(units, Mapping):
        return {}
    fit = {str(name): str(unit) for name, unit in units.items() if is_name(name) and len(str(unit)) <= MAX_UNIT_CHARS}
    return dict(list(fit.items())[:MAX_METRICS])


def is_name(name: object) -> bool:
    """Return whether a metric may be called so."""
    return isinstance(name, str) and 0 < len(name) <= MAX_NAME_CHARS and name.isprintable()


def checked_metrics(task: object, found: object) -> dict[str, float]:
    """Return what `task.metrics` returned, as numbers. TaskFaultError for what is no dict of few, short names to
    numbers."""
    at = place_of_method(task, "metrics") or "metrics()"
    if not isinstance(found, Mapping):
        raise TaskFaultError(f"{at}: metrics() returned a {type(found).__name__}", "return a dict of names to numbers")
    if len(found) > MAX_METRICS:
        raise TaskFaultError(f"{at}: metrics() returned {len(found)} numbers", f"return {MAX_METRICS} at most")
    if wrong := [name for name in found if not is_name(name)]:
        what = f"{at}: {str(wrong[0])[:MAX_NAME_CHARS]!r} cannot be a metric's name"
        raise TaskFaultError(what, f"1 to {MAX_NAME_CHARS} printable characters")
    try:
        return {name: float(value) for name, value in found.items()}
    except (TypeError, ValueError, RuntimeError) as error:
        raise TaskFaultError(f"{at}: a value of metrics() is no number ({error})", "return plain numbers") from error


class Means:
    """Means of metrics over batches, weighed by the batches' predictions."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}
        self._counts: dict[str, float] = {}

    def add(self, values: Mapping[str, float], count: float) -> None:
        """Take up a batch of `count` predictions."""
        for name, value in values.items():
            self._sums[name] = self._sums.get(name, 0.0) + value * count
            self._counts[name] = self._counts.get(name, 0) + count

    def merge(self, other: "Means") -> None:
        """Take up what another one has been given."""
        for name, total in other._sums.items():
            self._sums[name] = self._sums.get(name, 0.0) + total
            self._counts[name] = self._counts.get(name, 0.0) + other._counts[name]

    def finite(self) -> dict[str, float]:
        """Return the means, of the first MAX_METRICS names; those that are not finite are left out."""
        means = {name: total / (self._counts[name] or 1) for name, total in self._sums.items()}
        return {name: mean for name, mean in list(means.items())[:MAX_METRICS] if isfinite(mean)}
