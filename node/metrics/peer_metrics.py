"""Metrics by peer. It is the only label whose values strangers choose, so their number is bounded here.

The first MAX_PEERS peers have a label of their own, later ones are "other". So is a peer that is refused for one more
reason when there are MAX_PAIRS pairs of peer and reason. Values are kept in plain tables that are read at the scrape: a
round with hundreds of members costs one table access each, where a metric object a peer would cost a lock and a dozen
calls.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.core import Metric as Family
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from node.metrics.declared import Metric

MAX_PEERS = 64
"""Peers with a label of their own: eight times the default degree, so that churn fits, and a scrape stays small."""

MAX_PAIRS = 256
"""Most pairs of a peer and a reason: four reasons for each of MAX_PEERS, more than a liar gets before it is banned. All
reasons for all peers would be 1,600 series."""

OTHER = "other"


class PeerMetrics(Collector):
    """Collects what events say about peers."""

    def __init__(self, declared: Mapping[str, "Metric"]) -> None:
        """Make the tables. `declared`: the declarations of the metrics, by name."""
        self._declared = declared
        self._names: set[str] = set()
        self._rejected: Counter[tuple[str, str]] = Counter()
        self._clipped: Counter[str] = Counter()
        self._weights: dict[str, float] = {}

    def rejected(self, peer: str, reason: str) -> None:
        """Count something refused from this peer."""
        pair = self._name(peer), reason
        if pair not in self._rejected and len(self._rejected) >= MAX_PAIRS:
            pair = OTHER, reason
        self._rejected[pair] += 1

    def clipped(self, peers: Iterable[str]) -> None:
        """Count that the aggregator did not follow these peers in full."""
        self._clipped.update(map(self._name, peers))

    def weigh(self, weights: Mapping[str, float] | None) -> None:
        """Set the weights of the newest aggregate's members; those without a label of their own are summed. None: not
        reported."""
        if weights is None:
            return
        self._weights = {}
        for peer, weight in weights.items():
            name = self._name(peer)
            self._weights[name] = self._weights.get(name, 0.0) + weight

    def collect(self) -> Iterator[Family]:
        """Yield the families; a peer that was never refused, clipped or a member has no series."""
        metric = self._declared["peer_rejected"]
        refusals = CounterMetricFamily(metric.full_name, metric.help, labels=metric.labels)
        for pair, count in self._rejected.items():
            refusals.add_metric(pair, count)
        metric = self._declared["peer_clipped"]
        clipped = CounterMetricFamily(metric.full_name, metric.help, labels=metric.labels)
        for peer, count in self._clipped.items():
            clipped.add_metric([peer], count)
        metric = self._declared["peer_weight"]
        weights = GaugeMetricFamily(metric.full_name, metric.help, labels=metric.labels)
        for peer, weight in self._weights.items():
            weights.add_metric([peer], weight)
        yield from (refusals, clipped, weights)

    def _name(self, peer: str) -> str:
        if peer in self._names:
            return peer
        if len(self._names) >= MAX_PEERS:
            return OTHER
        self._names.add(peer)
        return peer
