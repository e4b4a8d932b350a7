"""Metrics that are no events: what is so at the moment of the scrape, read there and then.

Whoever owns the node says where to read (`watch`); until then nothing is known and all queues are empty. A scrape is
answered on the event loop, where the network's tables may be read.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, TypeAlias, get_args

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.core import Metric as Family
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from gossip.core.api import Durations, QueueName, Reachability, Relaying
from gossip.reachability.circuit import CircuitStatus

if TYPE_CHECKING:
    from node.metrics.declared import Metric

REACHABILITY: tuple[str, ...] = get_args(Reachability)

QUEUES: tuple[str, ...] = (*get_args(QueueName), "strategy", "closing", "corrections")
"""The network's, then the node's own: see `node.Node.queues`."""

REFUSALS: tuple[str, ...] = tuple(status.label for status in CircuitStatus if status is not CircuitStatus.OK)
"""Why a relay refuses what it is asked for."""


@dataclass(frozen=True, kw_only=True)
class Readings:
    """What is so now. `queues`: depth by name, of QUEUES."""

    reachability: str = "unknown"
    accepted: Mapping[str, int] = field(default_factory=dict)
    """Updates taken of each neighbour that is here."""
    read_seconds: Mapping[str, float] = field(default_factory=dict)
    """Of computing, that reading these took."""
    queues: Mapping[str, int] = field(default_factory=dict)
    blob_seconds: Durations = field(default_factory=Durations)
    drops: Mapping[str, int] = field(default_factory=dict)
    spectral_gap: float = -1.0
    """Below 0: no graph is known."""
    relaying: Relaying = field(default_factory=Relaying)
    relay_limit: float = 0.0
    """Bytes a second that it would relay at most; 0: it does not relay."""
    disk_free: int = -1
    """Bytes that this user may still write where the run lies; below 0: not known."""


Known: TypeAlias = float | Mapping[str, float] | Durations
"""One value, or one for each value of the metric's label, or a histogram's."""


@dataclass(frozen=True)
class Live:
    """A metric's value is read at the scrape."""

    read: Callable[[Readings], Known]


class LiveMetrics(Collector):
    """Reads and shows; holds no values of its own."""

    def __init__(self, metrics: Iterable["Metric"]) -> None:
        """`metrics`: those whose source is Live; others are passed over."""
        self._read: Callable[[], Readings] = Readings
        self._live = [(each, source) for each in metrics for source in each.sources if isinstance(source, Live)]

    def watch(self, read: Callable[[], Readings]) -> None:
        """From now on, ask `read` at every scrape."""
        self._read = read

    def collect(self) -> Iterator[Family]:
        """The families, with every label value that there is."""
        readings = self._read()
        for metric, source in self._live:
            yield _family(metric, source.read(readings))


def _family(metric: "Metric", value: Known) -> Family:
    """What Prometheus is told of one metric."""
    if isinstance(value, Durations):
        return _histogram(metric, value)
    maker = GaugeMetricFamily if metric.kind == "gauge" else CounterMetricFamily
    family = maker(metric.full_name, metric.help, labels=metric.labels)
    for label, each in value.items() if isinstance(value, Mapping) else (("", value),):
        family.add_metric([label] if metric.labels else [], each)
    return family


def _histogram(metric: "Metric", durations: Durations) -> Family:
    bounds = [*map(floatToGoString, durations.bounds_s), "+Inf"]
    family = HistogramMetricFamily(metric.full_name, metric.help)
    family.add_metric([], list(zip(bounds, accumulate(durations.counts), strict=True)), durations.sum_s)
    return family
