"""A round's event as the row of numbers that the page's charts draw. Rates follow from two events' totals."""

import math
from typing import Any, Final

from node.events.event_types import Evaluated, RoundClosed, RoundTrained
from node.events.progress import MAX_OWN
from node.page.history import Row

COLUMNS: Final = (
    "train_loss",
    "consensus_distance",
    "tokens_per_s",
    "sent_bytes_per_s",
    "received_bytes_per_s",
    "cpu_cores",
    "rss_bytes",
    "gpu_share",
    "gpu_memory_bytes",
    "learning_rate",
    "utilization",
)
"""The columns of a row after the round, in this order. The page receives the names, and finds a column by its name."""

MAX_NAME: Final = 64
"""Most characters of an own metric's name."""


class Columns:
    """Makes rows of one log's round events, in their order."""

    def __init__(self) -> None:
        self._before: RoundClosed | None = None

    def row(self, event: RoundClosed) -> Row:
        """Return the round, then a number or None for each of COLUMNS."""
        before, self._before = self._before, event
        told = {**_measured(event), **({} if before is None else _rates(before, event))}
        return (float(event.round), *(number(told.get(name)) for name in COLUMNS))


def _measured(event: RoundClosed) -> dict[str, float | None]:
    """Return the columns that are fields of the event itself."""
    told: dict[str, float | None] = {"rss_bytes": event.rss_bytes}
    if isinstance(event, RoundTrained):
        told |= {
            "train_loss": event.train_loss,
            "consensus_distance": event.consensus_distance,
            "tokens_per_s": event.tokens_per_s,
            "gpu_share": event.gpu_share,
            "gpu_memory_bytes": event.gpu_memory_bytes,
            "learning_rate": event.learning_rate,
            "utilization": event.utilization,
        }
    return told


def _rates(before: RoundClosed, event: RoundClosed) -> dict[str, float | None]:
    """Return by how much the totals since the start rose a second; None over a restart, which resets them."""
    seconds = event.ts - before.ts

    def rate(old: float | None, new: float | None) -> float | None:
        if old is None or new is None or seconds <= 0 or new < old:
            return None
        return (new - old) / seconds

    rates = {
        "sent_bytes_per_s": rate(before.bytes_sent, event.bytes_sent),
        "received_bytes_per_s": rate(before.bytes_received, event.bytes_received),
    }
    if isinstance(before, RoundTrained) and isinstance(event, RoundTrained):
        rates["cpu_cores"] = rate(before.cpu_s, event.cpu_s)
    return rates


def own_of(event: Evaluated) -> dict[str, float | None]:
    """Return the task's own metrics by name: finite numbers or None."""
    return {str(name)[:MAX_NAME]: number(value) for name, value in list(event.own.items())[:MAX_OWN]}


def number(value: Any) -> float | None:
    """Return `value` where it is a finite number, else None."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)
