"""Prometheus metrics of one node, in a registry of its own: two nodes in one process do not mix.

Most are fed by the node's events (`observe` is a sink of the EventLog), so that what Grafana shows is what
`events.jsonl` says; the event loop's lag is measured here, and what belongs to the moment of a scrape is read at it
(live_metrics.py). Counters take the totals that events carry. Those of the run (RUN_TOTALS) go on where a checkpoint
left off, which is nothing that this process has done: the first ones after `resumed` are what its counters count from.

Labels: `peer` is the only open one, and is capped (peer_metrics.py). The values of the others are known beforehand, and
stand at 0 from the first scrape: a series that appeared with its first event would hide that event from `rate()` and
`increase()`, which see differences only. When a series was created is not told: it would double the page, and
Prometheus makes nothing of it.
"""

import time

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

from gossip.core.errors import Reason
from node.events.log import Event
from node.metrics.energy import SOURCES
from node.metrics.live_metrics import LiveMetrics
from node.metrics.peer_metrics import PeerMetrics

disable_created_metrics()  # type: ignore[no-untyped-call]

LAG_PERIOD_S = 0.5
"""How often the event loop's lag is measured: stalls above 50 ms are what it looks for, and half a second costs
nothing."""

_SECONDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300)
"""Buckets for steps, rounds and transfers: half a decade each, from a step on a GPU to a round over a slow link."""

_GAUGES = {
    "train_loss": "Mean training loss of the newest round.",
    "consensus_distance": "Root mean square L2 distance of the members' models to their mean.",
    "utilization": "Share of wall time in which the node computes on the task.",
    "neighbours": "Neighbours that the node exchanges updates with.",
    "members": "Models in the newest aggregate, own included.",
    "compression_ratio": "Dense fp32 bytes over payload bytes sent, for as many updates.",
    "robust_margin": "Members that may leave before the promise about f liars is lost; negative: it is lost.",
    "payload_bytes": "Bytes of the newest update.",
    "inner_steps": "Steps that the next round is to have.",
    "peers_known": "Peers in the address book.",
    "rss_bytes": "Resident memory of the process.",
}
"""Gauges that take the field of the same name of whatever event has it."""

CLOSED_BY = ("quorum", "deadline", "alone")
"""`gossip.core.api.RoundView.closed_by`."""

DIRECTIONS = ("sent", "received")

PEER_EVENTS = ("up", "lost", "banned", "equivocation")
"""What is counted of neighbours' comings and goings."""


INFO = ("task", "aggregator", "compressor", "device", "role")
"""What `started` says of a node that does not change, and alerts go by (an observer does not train)."""

RUN_TOTALS = frozenset({"tokens", "compute", "skipped"})
"""Totals over all restarts; the others are of this process."""


class Metrics:
    """Every metric of a node. `observe` is cheap, and called on the event loop."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._gauges = {name: self._gauge(name, text) for name, text in _GAUGES.items()}
        self._peers = PeerMetrics()
        self.registry.register(self._peers)
        self._totals: dict[str, float] = {}
        self._to_base: frozenset[str] = frozenset()
        """Totals whose next value is where their counter begins."""
        self._checkpoint_at: float | None = None
        self._make_gauges()
        self._make_counters()
        self._make_histograms()
        self.live = LiveMetrics()
        """What is read at the scrape; it shows nothing until it is told where to read."""
        self.registry.register(self.live)
        self.newest_lag_s: float | None = None

    def observe(self, event: Event) -> None:
        """Take up one event; unknown ones and missing fields are passed over."""
        for name, gauge in self._gauges.items():
            if isinstance(event.get(name), int | float):
                gauge.set(event[name])
        handler = getattr(self, f"_on_{event['event']}", None)
        if handler is not None:
            handler(event)

    def loop_lag(self, seconds: float) -> None:
        """The event loop woke so much later than asked."""
        self.newest_lag_s = max(0.0, seconds)
        self._loop_lag.observe(self.newest_lag_s)

    async def watch_loop(self) -> None:
        """Measure the event loop's lag until cancelled."""
        while True:
            due = trio.current_time() + LAG_PERIOD_S
            await trio.sleep_until(due)
            self.loop_lag(trio.current_time() - due)

    def exposition(self) -> bytes:
        """The text that Prometheus scrapes."""
        return generate_latest(self.registry)

    content_type = CONTENT_TYPE_LATEST

    def _make_gauges(self) -> None:
        self._round = self._gauge("round", "The newest round that this node closed.")
        self._rounds = self._gauge("rounds", "Rounds that the run has; 0 until the first is closed.")
        self._tokens_per_second = self._gauge("tokens_per_second", "Tokens trained a second, over the newest round.")
        self._eval_loss = self._gauge("eval_loss", "Loss on the held-out split, in the task's metric.")
        self._own = self._gauge("own_metric", "The task's own metrics on the held-out split, by name.", "name")
        self._divergence = self._gauge(
            "output_divergence_nats",
            "KL of the neighbours' mean predictions from own ones, a prediction; -1: not known.",
        )
        self._divergence.set(-1)
        self._info = self._gauge("info", "1; the labels describe the node.", *INFO)
        self._parameters = self._gauge("parameters", "Parameters of the model.")
        self._staleness = self._gauge("staleness_rounds", "Rounds by which the most stale neighbour lags.")
        self._in_time = self._gauge(
            "updates_in_time_ratio",
            "Share of the neighbours' updates, over the newest 20 rounds, that came before the phase after their round "
            "had ended; -1: not known.",
        )
        self._in_time.set(-1)
        self._exchange = self._gauge(
            "exchange_seconds", "How long the exchange of a round's updates takes with a quorum; -1: not known."
        )
        self._exchange.set(-1)
        self._rung = self._gauge("rung", "1 for what the compressor `adaptive` made the newest update with.", "rung")
        self._link = self._gauge(
            "link_bytes_per_second", "Speed of updates to the slowest neighbour that a quorum waits for."
        )
        self._checkpoint_age = self._gauge(
            "checkpoint_age_seconds", "Seconds since the newest checkpoint; -1: none yet."
        )
        self._checkpoint_age.set_function(self._age)

    def _make_counters(self) -> None:
        self._steps = self._counter("steps", "Inner steps done.")
        self._tokens = self._counter("tokens", "Tokens (or examples) trained on.")
        self._compute = self._counter("compute_seconds", "Seconds spent in inner steps.")
        self._checkpoint_failures = self._counter(
            "checkpoint_failures", "Tries to write a checkpoint that the disk did not take."
        )
        self._skipped = self._counter("skipped_steps", "Steps not taken: their loss or gradient was not finite.")
        self._late = self._gauge("late_steps", "Steps by which the newest correction came late.")
        self._bytes = self._counter("update_bytes", "Payload bytes of updates.", "direction")
        self._updates = self._counter("updates", "Updates of neighbours.", "result", "reason")
        self._snapshot_bytes = self._counter("snapshot_bytes", "Bytes of whole models.", "direction")
        self._energy = self._counter(
            "energy_joules",
            "Energy that training took, by what says so; estimate: CPU time at so many watts.",
            "source",
        )
        self._closed = self._counter("rounds_closed", "Rounds closed, by what closed them.", "by")
        self._peer_events = self._counter("peer_events", "Neighbours come, gone, banned or caught lying.", "event")
        self._start_at_zero()

    def _start_at_zero(self) -> None:
        self._updates.labels(result="accepted", reason="")
        for direction in DIRECTIONS:
            self._bytes.labels(direction=direction)
            self._snapshot_bytes.labels(direction=direction)
        for reason in Reason:
            self._updates.labels(result="rejected", reason=reason.value)
        for source in SOURCES:
            self._energy.labels(source=source)
        for by in CLOSED_BY:
            self._closed.labels(by=by)
        for event in PEER_EVENTS:
            self._peer_events.labels(event=event)

    def _make_histograms(self) -> None:
        self._step_seconds = self._histogram("step_seconds", "Mean time of an inner step, once a round.")
        self._round_seconds = self._histogram("round_seconds", "Time from one closed round to the next.")
        self._close_seconds = self._histogram("close_seconds", "Time from publishing an update to the closed round.")
        self._loop_lag = self._histogram("event_loop_lag_seconds", "How much later than asked the event loop woke.")

    def _leave_out_training(self) -> None:
        """Of a node that does not train there is nothing to tell: series at 0 would look like those of one that hangs,
        and count as one more of which the others' share is."""
        gauges = (
            "train_loss",
            "consensus_distance",
            "utilization",
            "compression_ratio",
            "payload_bytes",
            "inner_steps",
        )
        of_training = [
            *(self._gauges[name] for name in gauges),
            *(self._tokens_per_second, self._late, self._link, self._rung, self._in_time, self._exchange),
            *(self._steps, self._tokens, self._compute, self._skipped, self._energy, self._closed),
            *(self._step_seconds, self._round_seconds, self._close_seconds),
        ]
        for collector in of_training:
            self.registry.unregister(collector)

    def _on_started(self, event: Event) -> None:
        self._parameters.set(event.get("parameters") or 0)
        labels = {key: str(event.get(key, "")) for key in INFO}
        self._info.labels(**labels).set(1)
        if labels["role"] in {"observer", "bootstrap"}:
            self._leave_out_training()

    def _on_round(self, event: Event) -> None:
        self._round.set(event["round"])
        self._rounds.set(event.get("rounds") or 0)
        self._tokens_per_second.set(event.get("tokens_per_s") or 0)
        self._late.set(event.get("late_steps") or 0)
        self._steps.inc(event.get("steps") or 0)  # of this round, not a total
        self._total(self._tokens, "tokens", event.get("tokens"))
        self._total(self._compute, "compute", event.get("compute_s"))
        self._total(self._skipped, "skipped", event.get("skipped_steps"))
        for source, joules in event.get("energy_j", {}).items():
            self._total(self._energy, f"energy {source}", joules, source=source)
        self._to_base = frozenset()
        self._closed.labels(by=str(event.get("closed_by", ""))).inc()
        self._exchanged(event)
        self._seconds(event)
        self._members(event)
        self._link.set(event.get("link_bytes_per_s") or 0)
        for gauge, key in ((self._in_time, "updates_in_time"), (self._exchange, "exchange_s")):
            gauge.set(-1 if event.get(key) is None else event[key])
        self._rung.clear()
        if event.get("rung"):
            self._rung.labels(rung=event["rung"]).set(1)

    def _exchanged(self, event: Event) -> None:
        """Bytes and updates since the process started."""
        for direction in DIRECTIONS:
            for kind, counter in (("payload", self._bytes), ("snapshot", self._snapshot_bytes)):
                name = f"{kind}_bytes_{direction}"
                self._total(counter, name, event.get(name), direction=direction)
        self._total(self._updates, "accepted", event.get("accepted"), result="accepted", reason="")
        for reason, total in event.get("rejected_by_reason", {}).items():
            self._total(self._updates, f"rejected {reason}", total, result="rejected", reason=reason)

    def _seconds(self, event: Event) -> None:
        histograms = {"step_s": self._step_seconds, "round_s": self._round_seconds, "close_s": self._close_seconds}
        for key, histogram in histograms.items():
            if event.get(key) is not None:
                histogram.observe(event[key])

    def _members(self, event: Event) -> None:
        """The members' staleness (rounds) and weight, each by peer."""
        if "staleness" in event:
            self._staleness.set(max(event["staleness"].values(), default=0))
        self._peers.clipped(map(str, event.get("clipped", ())))
        if "weights" in event:
            self._peers.weigh(event["weights"])

    def _on_evaluated(self, event: Event) -> None:
        if event.get("eval_loss") is not None:
            self._eval_loss.set(event["eval_loss"])
        self._own.clear()
        for name, value in event.get("own", {}).items():
            self._own.labels(name=name).set(value)
        told = event.get("output_divergence")
        self._divergence.set(-1 if told is None else told)

    def _on_rejected(self, event: Event) -> None:
        self._peers.rejected(str(event.get("peer", "")), str(event.get("reason", "")))

    def _on_resumed(self, event: Event) -> None:
        self._to_base = RUN_TOTALS

    def _on_checkpoint(self, event: Event) -> None:
        self._checkpoint_at = event.get("ts")

    def _on_checkpoint_failed(self, _: Event) -> None:
        self._checkpoint_failures.inc()

    def _on_neighbour_up(self, event: Event) -> None:
        self._peer_events.labels(event="up").inc()

    def _on_neighbour_lost(self, event: Event) -> None:
        self._peer_events.labels(event="lost").inc()

    def _on_banned(self, event: Event) -> None:
        self._peer_events.labels(event="banned").inc()

    def _on_equivocation(self, event: Event) -> None:
        self._peer_events.labels(event="equivocation").inc()

    def _total(self, counter: Counter, name: str, total: float | None, **labels: str) -> None:
        """Bring a counter (of these labels) up to a total that an event carries."""
        if total is None:
            return
        before = total if name in self._to_base else self._totals.get(name, 0.0)
        if total > before:  # looking a series up by its labels takes longer than all else here
            (counter.labels(**labels) if labels else counter).inc(total - before)
        self._totals[name] = max(total, before)

    def _age(self) -> float:
        return -1.0 if self._checkpoint_at is None else max(0.0, time.time() - self._checkpoint_at)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"p2ptrain_{name}", text, labels, registry=self.registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"p2ptrain_{name}_total", text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str) -> Histogram:
        return Histogram(f"p2ptrain_{name}", text, buckets=_SECONDS, registry=self.registry)
