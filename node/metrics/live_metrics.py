"""Metrics that do not come from events: they are read at the moment of the scrape.

The owner of the node sets the function that reads them (`watch`); until then nothing is known, and all queues are
empty. A scrape is answered on the event loop, where the network's tables may be read.
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
"""Names of the network's queues, then of the node's own (`node.Node.queues`)."""

REFUSALS: tuple[str, ...] = tuple(status.label for status in CircuitStatus if status is not CircuitStatus.OK)
"""Reasons for which a relay refuses a request."""


@dataclass(frozen=True, kw_only=True)
class Readings:
    """Current values. `queues`: depth by name, of QUEUES."""

    reachability: str = "unknown"
    accepted: Mapping[str, int] = field(default_factory=dict)
    """Updates accepted from each current neighbour."""
    read_seconds: Mapping[str, float] = field(default_factory=dict)
    """Seconds of computing that reading these took."""
    layers: Mapping[str, int] = field(default_factory=dict)
    """How many refinements of its newest update are held of each current neighbour with any."""
    fetched_first: Mapping[str, int] = field(default_factory=dict)
    """By current neighbour, 1 where its updates are fetched first; empty where all are alike."""
    queues: Mapping[str, int] = field(default_factory=dict)
    blob_seconds: Durations = field(default_factory=Durations)
    drops: Mapping[str, int] = field(default_factory=dict)
    spectral_gap: float = -1.0
    """Below 0: no graph is known."""
    relaying: Relaying = field(default_factory=Relaying)
    relay_limit: float = 0.0
    """Bytes a second that the node relays at most; 0: it does not relay."""
    crossed: Mapping[str, int] = field(default_factory=dict)
    """Bytes of regions' models that passed between this node's region and others: `sent`, and `received`."""
    paused: Mapping[str, float] = field(default_factory=dict)
    """Seconds for which each participation policy of the node has paused its training."""
    neighbours_paused: int = 0
    """Neighbours that say that they are paused."""
    visits: Mapping[str, int] = field(default_factory=dict)
    """Differences that visitors left, by what became of them; empty where there are no visitors."""
    budget: Mapping[str, float] = field(default_factory=dict)
    """What the node may take, by resource: bytes, and cores of `cpu`; empty where it has no budget."""
    budget_used: Mapping[str, float] = field(default_factory=dict)
    """What it takes of each."""
    shift_deviation: Mapping[str, float] = field(default_factory=dict)
    """How far each signal of shift is from what is usual, in standard deviations; empty where none is watched."""
    privacy_epsilon: Mapping[str, float] = field(default_factory=dict)
    """What the node's data have spent of their privacy, by delta; empty where nothing protects them."""
    privacy_epsilon_budget: Mapping[str, float] = field(default_factory=dict)
    """What they may spend; empty without a budget."""
    visits_epsilon: Mapping[str, float] = field(default_factory=dict)
    """What the visitor has spent of its privacy that has spent most, by delta; empty where noise hides none."""
    visits_epsilon_budget: Mapping[str, float] = field(default_factory=dict)
    """What each visitor may spend; empty without a budget."""
    disk_free: int = -1
    """Bytes that this user may still write on the run's disk; below 0: not known."""


Known: TypeAlias = float | Mapping[str, float] | Durations
"""One value, or one for each value of the metric's label, or a histogram's values."""


@dataclass(frozen=True)
class Live:
    """Source of a metric whose value is read at the scrape."""

    read: Callable[[Readings], Known]


class LiveMetrics(Collector):
    """Collector that reads its values at each scrape and stores none."""

    def __init__(self, metrics: Iterable["Metric"]) -> None:
        """Of `metrics` take those whose source is Live, and ignore the others."""
        self._read: Callable[[], Readings] = Readings
        self._live = [(each, source) for each in metrics for source in each.sources if isinstance(source, Live)]

    def watch(self, read: Callable[[], Readings]) -> None:
        """Call `read` at every scrape from now on."""
        self._read = read

    def collect(self) -> Iterator[Family]:
        """Yield the families, with every label value."""
        readings = self._read()
        for metric, source in self._live:
            yield _family(metric, source.read(readings))


def _family(metric: "Metric", value: Known) -> Family:
    """Return the Prometheus family of one metric."""
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
