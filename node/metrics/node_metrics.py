"""Prometheus metrics of one node, in a registry of its own: two nodes in one process do not mix.

They are declared in declared.py, and their sources are in sources.py. Most are fed by the node's events (`observe` is a
sink of the EventLog), so that Grafana shows what `events.jsonl` says. The event loop's lag is measured here, and
current values are read at the scrape (live_metrics.py). Creation times of series are not exported: they would double
the page, and Prometheus does not use them.
"""

from typing import Any, TypeAlias

import trio
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from node.events.event_types import Event, Resumed, RoundClosed, Started
from node.metrics.declared import DECLARED, METRICS, Metric
from node.metrics.live_metrics import Live, LiveMetrics
from node.metrics.peer_metrics import PeerMetrics
from node.metrics.sources import ByPeer, EventSource, Measured, RisingTotals, Since, Value
from node.system.light_roles import WITHOUT_MODEL

disable_created_metrics()  # type: ignore[no-untyped-call]

LAG_PERIOD_S = 0.5
"""Seconds between two measurements of the event loop's lag: it looks for stalls above 50 ms, and this often it costs
nothing."""

SECONDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300)
"""Buckets for steps, rounds and transfers: half a decade each, from a step on a GPU to a round over a slow link."""

LAG = "event_loop_lag_seconds"

PRIVATE_LOSS = "train_loss"
"""What a node that protects its data does not tell. NaN in its place would be an alert."""

Fed: TypeAlias = list[tuple[EventSource, Any]]
"""Sources, each with the collector that it feeds."""


class Metrics:
    """Every metric of a node. `observe` is cheap, and called on the event loop."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._peers = PeerMetrics(DECLARED)
        self.registry.register(self._peers)
        self._collectors = {metric.name: self._made(metric) for metric in METRICS if _is_made_here(metric)}
        self._loop_lag: Histogram = self._collectors[LAG]
        self._totals = RisingTotals()
        self._fed: dict[type[Event], Fed] = {}
        self.live = LiveMetrics(METRICS)
        """The metrics read at the scrape; empty until `watch` is called."""
        self.registry.register(self.live)
        self.newest_lag_s: float | None = None

    def observe(self, event: Event) -> None:
        """Feed one event to the metrics; events that feed none are ignored."""
        if isinstance(event, Resumed):
            self._totals.resumed = True
        if type(event) not in self._fed:
            self._fed[type(event)] = self._fed_by(type(event))
        for source, collector in self._fed[type(event)]:
            source.feed(collector, event, self._totals)
        if isinstance(event, RoundClosed):
            self._totals.resumed = False
        if isinstance(event, Started) and event.role in {"observer", *WITHOUT_MODEL}:
            self._leave_out_training()

    def leave_out(self, name: str) -> None:
        """Do not serve the metric `name`: this node has nothing to tell of it. Call it once."""
        self.registry.unregister(self._collectors[name])

    def loop_lag(self, seconds: float) -> None:
        """Record that the event loop woke `seconds` later than asked."""
        self.newest_lag_s = max(0.0, seconds)
        self._loop_lag.observe(self.newest_lag_s)

    async def watch_loop(self) -> None:
        """Measure the event loop's lag until cancelled."""
        while True:
            due = trio.current_time() + LAG_PERIOD_S
            await trio.sleep_until(due)
            self.loop_lag(trio.current_time() - due)

    def exposition(self) -> bytes:
        """Return the text that Prometheus scrapes."""
        return generate_latest(self.registry)

    content_type = CONTENT_TYPE_LATEST

    def _fed_by(self, kind: type[Event]) -> Fed:
        return [
            (source, self._peers if isinstance(source, ByPeer) else self._collectors[metric.name])
            for metric in METRICS
            for source in metric.sources
            if not isinstance(source, Live | Measured) and issubclass(kind, source.event)
        ]

    def _made(self, metric: Metric) -> Any:
        """Return the metric's prometheus-client object, with its initial series."""
        if metric.kind == "histogram":
            return Histogram(metric.full_name, metric.help, buckets=SECONDS, registry=self.registry)
        maker: Any = Gauge if metric.kind == "gauge" else Counter
        made = maker(metric.full_name, metric.help, metric.labels, registry=self.registry)
        for values in metric.begins:
            made.labels(*values)
        for source in metric.sources:
            if isinstance(source, Value) and source.unknown is not None:
                made.set(source.unknown)
            elif isinstance(source, Since):
                made.set(-1)
        return made

    def _leave_out_training(self) -> None:
        for metric in METRICS:
            if metric.of_training:
                self.leave_out(metric.name)


def _is_made_here(metric: Metric) -> bool:
    """Return whether the metric is made here: those of the scrape, of peers and of a GPU have collectors of their
    own."""
    source = metric.sources[0]
    return metric.name == LAG or not isinstance(source, Live | ByPeer | Measured)
