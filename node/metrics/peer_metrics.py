"""Metrics by peer. It is the only label whose values strangers choose, so their number is bounded here.

MAX_PEERS peers have a label of their own, others are "other". So is a peer that is refused for one more reason when
there are MAX_PAIRS pairs of peer and reason. The label of a peer that no event named for LABEL_S is given to the next
one, and its counts go on as those of "other". So who is there is seen after a year, too, and a crowd of new keys makes
no more than MAX_PEERS series a day. Values are kept in plain tables that are read at the scrape: a round with hundreds
of members costs one table access each, where a metric object a peer would cost a lock and a dozen calls.
"""

import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
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

LABEL_S = 86_400.0
"""Seconds for which a peer keeps its label after an event named it last. Chosen: a day, as a volunteer's card comes
back in the evening."""

OTHER = "other"


class PeerMetrics(Collector):
    """Collects what events say about peers."""

    def __init__(self, declared: Mapping[str, "Metric"], clock: Callable[[], float] = time.monotonic) -> None:
        """Make the tables. `declared`: the declarations of the metrics, by name. `clock` returns seconds."""
        self._declared = declared
        self._clock = clock
        self._told_at: OrderedDict[str, float] = OrderedDict()
        """When an event named each peer that has a label last, the longest ago first."""
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
        for peer, count in (+self._clipped).items():
            clipped.add_metric([peer], count)
        metric = self._declared["peer_weight"]
        weights = GaugeMetricFamily(metric.full_name, metric.help, labels=metric.labels)
        for peer, weight in self._weights.items():
            weights.add_metric([peer], weight)
        yield from (refusals, clipped, weights)

    def _name(self, peer: str) -> str:
        now = self._clock()
        if peer not in self._told_at and len(self._told_at) >= MAX_PEERS:
            oldest, told_at = next(iter(self._told_at.items()))
            if now - told_at < LABEL_S:
                return OTHER
            self._let_go(oldest)
        self._told_at[peer] = now
        self._told_at.move_to_end(peer)
        return peer

    def _let_go(self, peer: str) -> None:
        """Give up a peer's label, and count what it stood for under OTHER."""
        del self._told_at[peer]
        self._clipped[OTHER] += self._clipped.pop(peer, 0)
        for pair in [pair for pair in self._rejected if pair[0] == peer]:
            self._rejected[OTHER, pair[1]] += self._rejected.pop(pair)
