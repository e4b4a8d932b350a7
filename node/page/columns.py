"""What a round's event says, as the row of numbers that the page's charts draw. Rates come of two events' totals."""

import math
from collections.abc import Mapping
from typing import Final

from node.events.log import Event
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
"""What stands in a row behind the round, in this order: the page is told the names and looks for none by its place."""

MAX_NAME: Final = 64
"""Characters of an own metric's name."""

_TOTALS: Final = {
    "sent_bytes_per_s": "payload_bytes_sent",
    "received_bytes_per_s": "payload_bytes_received",
    "cpu_cores": "cpu_s",
}
"""Totals since the start, by what they rise a second."""


class Columns:
    """Makes rows of one log's round events, in their order."""

    def __init__(self) -> None:
        self._before: Event = {}

    def row(self, event: Event) -> Row:
        """The round, then a number or None for each of COLUMNS."""
        before, self._before = self._before, event
        rates = {name: _rate(before, event, total) for name, total in _TOTALS.items()}
        return (float(event["round"]), *(rates.get(name, number(event.get(name))) for name in COLUMNS))


def own_of(event: Event) -> dict[str, float | None]:
    """The own metrics that an event has, by name."""
    own = event.get("own")
    if not isinstance(own, Mapping):
        return {}
    return {str(name)[:MAX_NAME]: number(value) for name, value in list(own.items())[:MAX_OWN]}


def number(value: object) -> float | None:
    """A finite number, or nothing."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def _rate(before: Event, event: Event, name: str) -> float | None:
    """None over a restart, where totals begin anew, and where a total or a time is missing."""
    old, new = number(before.get(name)), number(event.get(name))
    began, ended = number(before.get("ts")), number(event.get("ts"))
    if old is None or new is None or began is None or ended is None or ended <= began or new < old:
        return None
    return (new - old) / (ended - began)
