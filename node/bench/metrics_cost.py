"""`p2ptrain bench metrics`: what a node's metrics cost it, and how large a scrape is.

A node that has `peers` neighbours, each of which it has had to refuse for every reason that there is, is scraped over
HTTP by its own status server, on loopback. (What the network would be asked at each scrape stands at 0: sums of its
tables.) In turns with that, one inner step of byte-lm is timed on one thread: what the metrics take of it is a round's
event, the event loop's lag twice a second, and a scrape every five seconds. A step a round is the most that can be.
"""

import itertools
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import trio

from gossip.core.errors import Reason
from node.bench.base import Column, Row, Summary, within
from node.bench.blob import draw_speeds, with_medians
from node.bench.timing import spent, threads
from node.events.event_types import Rejected, RoundTrained
from node.events.progress import NodeProgress
from node.metrics.live_metrics import Readings
from node.metrics.node_metrics import LAG_PERIOD_S, Metrics
from node.page.feed import Feed
from node.page.status_server import StatusServer
from node.system.disk import disk_free
from p2ptrain import tasks
from p2ptrain.tasks import Shard
from p2ptrain.training import TrainConfig, Trainer

if TYPE_CHECKING:
    from matplotlib.figure import Figure

T = TypeVar("T")

MAX_PEERS: Final = 100_000
SCRAPES_S: Final = 5.0
"""Between two scrapes, as in monitoring/prometheus.yml."""
EVENTS: Final = 20
"""Timed at once: one takes some 100 us, of which a clock's call is little."""
ALPHABET: Final = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
"""Of base58, in which peer ids are written."""

COLUMNS: Final = (
    Column(key="repetition", title="repetition"),
    Column(key="scrape_ms", title="scrape", unit="ms", digits=1),
    Column(key="page_ms", title="of it own work", unit="ms", digits=1),
    Column(key="kilobytes", title="size", unit="kB", digits=1),
    Column(key="event_us", title="round's event", unit="us", digits=0),
    Column(key="step_ms", title="step", unit="ms", digits=1),
    Column(key="cost", title="cost", unit="% of a step", digits=3),
)


@dataclass(frozen=True, kw_only=True)
class MetricsCost:
    """A measurement of a node that knows `peers` peers and trains byte-lm of this size, a step a round."""

    peers: int
    repetitions: int
    size: str = "nano"
    name: str = "metrics"

    def __post_init__(self) -> None:
        within("peers", self.peers, 1, MAX_PEERS)
        within("repetitions", self.repetitions, 1)

    def run(self) -> Iterator[Row]:
        """Measure; yield each row as soon as there is one: a row a repetition."""
        with threads(1):
            trainer = Trainer(tasks.get("byte-lm", size=self.size), TrainConfig(), Shard(index=0, count=1))
            for repetition in range(self.repetitions + 1):
                row = trio.run(partial(_measure, self.peers, trainer.step, repetition))
                if repetition:  # the first warms up
                    yield {"repetition": repetition, "peers": self.peers, "size": self.size, **row}

    def summaries(self, rows: Sequence[Row]) -> Sequence[Summary]:
        """Return tables of these rows."""
        notes = [
            "scrape: /metrics over HTTP on loopback, the client's part included; own work: making the page",
            f"cost: of a step of byte-lm {self.size}, one thread, a round a step: its event, the loop's lag every "
            f"{LAG_PERIOD_S:g} s and a page every {SCRAPES_S:g} s",
        ]
        title = f"The metrics of a node that knows {self.peers:,} peers, each refused for {len(Reason)} reasons"
        return [Summary(title=title, columns=COLUMNS, rows=with_medians(rows), notes=notes)]

    def draw(self, rows: Sequence[Row], figure: "Figure") -> None:
        """Draw the rows on an empty figure."""
        draw_speeds(rows, figure, {"scrape_ms": "scrape", "page_ms": "of it own work", "step_ms": "a step"}, unit="ms")


async def _measure(peers: int, step: Callable[[], float], repetition: int) -> Row:
    metrics, folder = Metrics(), Path.cwd()
    ids = [_peer_id(number) for number in range(peers)]
    taken = dict.fromkeys(ids, 1_000)
    metrics.live.watch(lambda: Readings(accepted=taken, disk_free=disk_free(folder)))
    for peer, reason in itertools.product(ids, Reason):
        metrics.observe(Rejected(peer=peer, reason=reason.value, detail=""))
    rounds = [_round(ids, repetition * EVENTS + number) for number in range(EVENTS)]
    event_s = spent(lambda: _each(metrics.observe, rounds)).wall / EVENTS
    lag_s = spent(lambda: _each(metrics.loop_lag, [1e-4] * EVENTS)).wall / EVENTS
    page_s = spent(metrics.exposition).wall
    scrape_s, size = await _scrape(metrics)
    step_s = spent(step).wall
    return {
        "scrape_ms": 1e3 * scrape_s,
        "page_ms": 1e3 * page_s,
        "kilobytes": size / 1e3,
        "event_us": 1e6 * event_s,
        "lag_us": 1e6 * lag_s,
        "step_ms": 1e3 * step_s,
        "cost": 100 * (event_s / step_s + lag_s / LAG_PERIOD_S + page_s / SCRAPES_S),
    }


def _each(take: Callable[[T], None], items: Sequence[T]) -> None:
    for item in items:
        take(item)


async def _scrape(metrics: Metrics) -> tuple[float, int]:
    """Seconds, and bytes of the page."""
    server = StatusServer(metrics, Feed(NodeProgress("bench")))
    async with trio.open_nursery() as nursery:
        url = await nursery.start(server.run)
        taken, page = await trio.to_thread.run_sync(_get, f"{url}/metrics")
        nursery.cancel_scope.cancel()
    return taken, len(page)


def _get(url: str) -> tuple[float, bytes]:
    began = time.perf_counter()
    with urllib.request.urlopen(url, timeout=30) as answer:
        page = answer.read()
    return time.perf_counter() - began, page


def _peer_id(number: int) -> str:
    """As long as a real one, and unlike the others."""
    digits = "".join(ALPHABET[number // 58**place % 58] for place in range(6))
    return f"12D3KooW{'x' * 38}{digits}"


def _round(ids: Sequence[str], number: int) -> RoundTrained:
    """A `round` event as a trainer's, with every peer a member, and each reason's count risen."""
    return RoundTrained(
        round=number,
        rounds=10_000,
        train_loss=2.5,
        steps=1,
        tokens=1_000 * number,
        tokens_per_s=1e4,
        neighbours=len(ids),
        members=len(ids) + 1,
        closed_by="quorum",
        payload_bytes=1_000,
        payload_bytes_sent=1_000 * number,
        payload_bytes_received=1_000 * number,
        snapshot_bytes_sent=0,
        snapshot_bytes_received=0,
        accepted=len(ids) * number,
        rejected_by_reason={reason.value: number for reason in Reason},
        consensus_distance=0.1,
        utilization=0.99,
        robust_margin=1,
        step_s=0.05,
        round_s=1.0,
        close_s=0.2,
        compute_s=float(number),
        skipped_steps=0,
        late_steps=2,
        energy_j={"estimate": 7.0 * number},
        staleness=dict.fromkeys(ids, 0),
        weights=dict.fromkeys(ids, 1.0),
        clipped=list(ids),
        inner_steps=1,
        peers_known=len(ids),
        rss_bytes=1 << 28,
        fresh=len(ids),
        rejected=0,
        collect_s=0.1,
        updates_in_time=1.0,
        exchange_s=0.1,
        link_bytes_per_s=1e6,
        rung="",
        publish_s=0.05,
        aggregate_s=0.05,
        cpu_s=float(number),
        gpu_share=None,
        gpu_memory_bytes=None,
        learning_rate=1e-3,
        compression_ratio=15.7,
        bytes_sent=1_100 * number,
        bytes_received=1_100 * number,
        sent_bits=0.5,
        published_bits=0.1,
    )
