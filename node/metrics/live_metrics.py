"""Metrics that are no events: what is so at the moment of the scrape, read there and then.

Whoever owns the node says where to read (`watch`); until then nothing is known and all queues are empty. A scrape is
answered on the event loop, where the network's tables may be read.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import get_args

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from gossip.core.api import Durations, QueueName, Reachability, Relaying
from gossip.reachability.circuit import CircuitStatus
from gossip.transport.drop_reasons import DROPS

REACHABILITY: tuple[str, ...] = get_args(Reachability)

QUEUES: tuple[str, ...] = (*get_args(QueueName), "strategy", "closing", "corrections")
"""The network's, then the node's own: see `node.Node.queues`."""

GAP = "Algebraic connectivity over mean degree of the graph of members, as far as it is known; -1: it is not."

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


class LiveMetrics(Collector):
    """Reads and shows; holds no values of its own."""

    def __init__(self) -> None:
        self._read: Callable[[], Readings] = Readings

    def watch(self, read: Callable[[], Readings]) -> None:
        """From now on, ask `read` at every scrape."""
        self._read = read

    def collect(self) -> Iterator[Metric]:
        """The families, with every label value that there is."""
        readings = self._read()
        yield _reachability(readings.reachability)
        yield _accepted(readings.accepted)
        yield _read_seconds(readings.read_seconds)
        yield _queues(readings.queues)
        yield _blobs(readings.blob_seconds)
        yield _drops(readings.drops)
        yield _gauge("spectral_gap", GAP, readings.spectral_gap)
        yield from _relaying(readings.relaying)
        yield _gauge(
            "relay_limit_bytes_per_second", "What the node relays at most; 0: it does not.", readings.relay_limit
        )
        yield _gauge("disk_free_bytes", "Free where the run's folder lies; -1: not known.", readings.disk_free)


def _reachability(state: str) -> Metric:
    """A set of states of which exactly one holds: 0 alone would read as unreachable, which nobody can know."""
    text = (
        "1 for what peers have shown: dialled by others (reached), by nobody so far (outbound), or no peers (unknown)."
    )
    family = GaugeMetricFamily("p2ptrain_reachability", text, labels=["state"])
    for each in REACHABILITY:
        family.add_metric([each], float(each == state))
    return family


def _accepted(totals: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily("p2ptrain_peer_accepted", "Updates taken, by neighbour.", labels=["peer"])
    for peer, total in totals.items():
        family.add_metric([peer], total)
    return family


def _read_seconds(seconds: Mapping[str, float]) -> Metric:
    text = "Seconds of computing that reading a neighbour's updates took."
    family = CounterMetricFamily("p2ptrain_peer_read_seconds", text, labels=["peer"])
    for peer, total in seconds.items():
        family.add_metric([peer], total)
    return family


def _blobs(durations: Durations) -> Metric:
    name = "p2ptrain_blob_seconds"
    bounds = [*map(floatToGoString, durations.bounds_s), "+Inf"]
    family = HistogramMetricFamily(name, "Time from the first request for a blob to its last verified byte.")
    family.add_metric([], list(zip(bounds, accumulate(durations.counts), strict=True)), durations.sum_s)
    return family


def _queues(depths: Mapping[str, int]) -> Metric:
    family = GaugeMetricFamily("p2ptrain_queue_depth", "What waits or is under way now.", labels=["queue"])
    for name in QUEUES:
        family.add_metric([name], depths.get(name, 0))
    return family


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"p2ptrain_{name}", text, value)


def _drops(counts: Mapping[str, int]) -> Metric:
    text = "What the transport refused, let go or survived: connections, handshakes, streams, frames, broadcasts."
    family = CounterMetricFamily("p2ptrain_drops", text, labels=["kind"])
    for kind in DROPS:
        family.add_metric([kind], counts.get(kind, 0))
    return family


def _relaying(relaying: Relaying) -> Iterator[Metric]:
    """What the node relays for others; all at 0 where it relays nothing."""
    yield _gauge("relay_circuits", "Circuits that are relayed now.", relaying.circuits)
    yield CounterMetricFamily("p2ptrain_relay_bytes", "Bytes relayed, counted once each.", relaying.carried_bytes)
    text = "Reservations and circuits that were asked for in vain, by the answer's status."
    family = CounterMetricFamily("p2ptrain_relay_refused", text, labels=["status"])
    for status in REFUSALS:
        family.add_metric([status], relaying.refused.get(status, 0))
    yield family
