"""The sources of the metrics' values, named in their declarations (declared.py).

A source with an `event` is fed by the node's events: `feed` is called with the metric's collector and each event of
that type. `Live` is read at the scrape (live_metrics.py). `Measured` names the code that measures a value no event has.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Generic, Protocol, TypeVar

from prometheus_client import Counter, Gauge, Histogram

from node.events.event_types import Event
from node.metrics.peer_metrics import PeerMetrics

E = TypeVar("E", bound=Event)


class RisingTotals:
    """The total that each counter has reached. Totals of the run continue from a checkpoint, which is no work of this
    process: so its counters count from the first totals after `resumed`."""

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], float] = {}
        self.resumed = False
        """Whether the counters of the run's totals begin at the next ones."""

    def rise(self, key: tuple[object, ...], total: float, *, of_run: bool) -> float:
        """Return by how much a total has risen; it never falls."""
        before = total if of_run and self.resumed else self._known.get(key, 0.0)
        self._known[key] = max(total, before)
        return max(0.0, total - before)


class EventSource(Protocol):
    """Feeds a collector from events of one type."""

    @property
    def event(self) -> type[Event]:
        """Return the type of event; types that extend it are included."""

    def feed(self, collector: Any, event: Any, totals: RisingTotals) -> None:
        """Feed one event of this type to the collector."""


@dataclass(frozen=True)
class _Field:
    event: type[Event]
    field: str

    def __post_init__(self) -> None:
        known = [each.name for each in fields(self.event)]
        assert self.field in known, f"{self.event.__name__} has no field {self.field}"


@dataclass(frozen=True)
class Value(_Field):
    """A gauge has the newest value of a field, times `scale`. Where that is None it keeps the one before, or shows
    `unknown`."""

    unknown: float | None = None
    scale: float = 1.0

    def feed(self, collector: Gauge, event: Event, totals: RisingTotals) -> None:
        """Set the gauge."""
        value = getattr(event, self.field)
        if value is not None:
            collector.set(self.scale * value)
        elif self.unknown is not None:
            collector.set(self.unknown)


@dataclass(frozen=True)
class Highest(_Field):
    """A gauge has the highest of a field's values by peer; 0 where there are none."""

    def feed(self, collector: Gauge, event: Event, totals: RisingTotals) -> None:
        """Set the gauge."""
        values = getattr(event, self.field)
        if values is not None:
            collector.set(max(values.values(), default=0))


@dataclass(frozen=True)
class ByName(_Field):
    """A gauge has one series for each name in a field (a mapping, or one name with the value 1), and none for former
    names."""

    label: str

    def feed(self, collector: Gauge, event: Event, totals: RisingTotals) -> None:
        """Set the series, and drop the former ones."""
        told = getattr(event, self.field)
        values = told if isinstance(told, Mapping) else {told: 1} if told else {}
        collector.clear()
        for name, value in values.items():
            if isinstance(value, int | float):
                collector.labels(**{self.label: name}).set(value)


@dataclass(frozen=True)
class Labels:
    """A gauge of value 1, whose labels are fields of the event; a label is empty where the event has no such field."""

    event: type[Event]
    labels: tuple[str, ...]

    def feed(self, collector: Gauge, event: Event, totals: RisingTotals) -> None:
        """Set the series."""
        collector.labels(**{name: str(getattr(event, name, "")) for name in self.labels}).set(1)


@dataclass(frozen=True)
class Since:
    """A gauge has the seconds since the newest event of a type; -1 before the first."""

    event: type[Event]

    def feed(self, collector: Gauge, event: Event, totals: RisingTotals) -> None:
        """Count the seconds from this event on."""
        collector.set_function(lambda: max(0.0, time.time() - event.ts))


@dataclass(frozen=True)
class Total(_Field):
    """A counter is raised to the total in a field, or to each total of a mapping, whose keys are the label `by`.
    `of_run`: the total is over all restarts, otherwise since this process started."""

    labels: Mapping[str, str] = field(default_factory=dict)
    by: str = ""
    of_run: bool = False

    def feed(self, collector: Counter, event: Event, totals: RisingTotals) -> None:
        """Raise the counter to the total."""
        told = getattr(event, self.field)
        if not self.by:
            self._bring(collector, "", told, totals)
        elif told is not None:
            for name, total in told.items():
                self._bring(collector, name, total, totals)

    def _bring(self, collector: Counter, name: str, total: float | None, totals: RisingTotals) -> None:
        if total is None:
            return
        rise = totals.rise((self.event, self.field, name), total, of_run=self.of_run)
        if rise > 0:  # finding a series by its labels takes longer than all else here
            labels = {**self.labels, self.by: name} if self.by else self.labels
            (collector.labels(**labels) if labels else collector).inc(rise)


@dataclass(frozen=True)
class Added(_Field):
    """A counter rises by a field that is not a total."""

    def feed(self, collector: Counter, event: Event, totals: RisingTotals) -> None:
        """Add the field's value."""
        collector.inc(getattr(event, self.field))


@dataclass(frozen=True)
class Counted:
    """A counter counts events. The label `label` is the value of the field `by`, or else `value`."""

    event: type[Event]
    label: str = ""
    value: str = ""
    by: str = ""

    def feed(self, collector: Counter, event: Event, totals: RisingTotals) -> None:
        """Count the event."""
        value = str(getattr(event, self.by)) if self.by else self.value
        (collector.labels(**{self.label: value}) if self.label else collector).inc()


@dataclass(frozen=True)
class Observed(_Field):
    """A histogram takes each value of a field."""

    def feed(self, collector: Histogram, event: Event, totals: RisingTotals) -> None:
        """Observe the field's value, if there is one."""
        value = getattr(event, self.field)
        if value is not None:
            collector.observe(value)


@dataclass(frozen=True)
class ByPeer(Generic[E]):
    """Metrics by peer, with a bounded label (peer_metrics.py), take what an event says about peers."""

    event: type[E]
    take: Callable[[PeerMetrics, E], None]

    def feed(self, collector: PeerMetrics, event: E, totals: RisingTotals) -> None:
        """Pass the event to the peers' metrics."""
        self.take(collector, event)


@dataclass(frozen=True)
class Measured:
    """Measured without an event: `by` says which code measures it, and when."""

    by: str
