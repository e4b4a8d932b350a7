"""`p2ptrain bench blob`: a blob from one process to another, the way an update travels.

Measured from the call to publish until the fetcher holds bytes that it has verified: hashing at one end, the
announcement, pulling, and hashing at the other. In turns with it, by the same two processes, go the same bytes over
what gossip is built on: the installed libp2p's Noise and yamux, and a TCP socket. Those two are neither announced nor
hashed while the clock runs, so that the comparison does not flatter. A first turn of all three warms up, untold.
"""

import secrets
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from node.bench.base import Column, Row, Summary, within
from node.bench.network.workers import Worker, Workers
from node.system.errors import RunError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_MIB: Final = 4096
"""Both ends hold the blob, the fetcher for a moment twice."""
WAYS: Final = ("gossip", "bare", "tcp")
LEAST_MIB_S: Final = 2.0
"""Slower than this is as good as stuck: py-libp2p's slowest transport moves twice as much."""
PATIENCE_S: Final = 120.0
"""For whatever takes no time in itself: starting Python beside a dozen others on a busy machine."""

COLUMNS: Final = (
    Column(key="repetition", title="repetition"),
    Column(key="seconds", title="time", unit="s", digits=3),
    Column(key="mib_s", title="blob", unit="MiB/s", digits=1),
    Column(key="publish_seconds", title="publish", unit="s", digits=3),
    Column(key="bare_mib_s", title="noise+yamux", unit="MiB/s", digits=1),
    Column(key="of_bare", title="of noise+yamux", unit="times", digits=2),
    Column(key="tcp_mib_s", title="TCP", unit="MiB/s", digits=1),
)


@dataclass(frozen=True, kw_only=True)
class Blob:
    """A measurement of sending one blob of `mib` MiB, several times."""

    mib: int
    repetitions: int
    seed: int = 0
    name: str = "blob"

    def __post_init__(self) -> None:
        within("mib", self.mib, 1, MAX_MIB)
        within("repetitions", self.repetitions, 1)

    def run(self) -> Iterator[Row]:
        """Measure; yield each row as soon as there is one: a row a repetition."""
        with Workers(PATIENCE_S + self.mib / LEAST_MIB_S) as workers:
            publisher, fetcher = workers.hire("the publisher", "publisher"), workers.hire("the fetcher", "fetcher")
            start = {"mib": self.mib, "seed": self.seed, "swarm": f"bench-{secrets.token_hex(8)}"}
            workers.tell(publisher, "start", **start)
            workers.tell(fetcher, "start", **start, addresses=workers.hear(publisher, "ready")["addresses"])
            connected_s = workers.hear(fetcher, "connected")["seconds"]
            for repetition in range(self.repetitions + 1):
                row = self._repeat(workers, publisher, fetcher, repetition)
                if repetition:
                    yield {"repetition": repetition, "mib": self.mib, **row, "meeting_seconds": round(connected_s, 3)}

    def _repeat(self, workers: Workers, publisher: Worker, fetcher: Worker, repetition: int) -> Row:
        workers.tell(publisher, "make")
        digest = workers.hear(publisher, "made")["digest"]
        row: dict[str, object] = {}
        seconds: dict[str, float] = {}
        for turn in range(len(WAYS)):
            way = WAYS[(repetition + turn) % len(WAYS)]  # the first one after the making has cold caches
            workers.tell(fetcher, "fetch", way=way)
            published = None
            if way == "gossip":
                workers.tell(publisher, "publish")
                published = workers.hear(publisher, "published")
                row["publish_seconds"] = round(published["ended"] - published["began"], 4)
            fetched = workers.hear(fetcher, "fetched")
            if fetched["digest"] != digest:
                raise RunError(f"{way} brought other bytes than were sent")
            seconds[way] = fetched["ended"] - (published or fetched)["began"]
        return {**self._told(seconds), **row}

    def _told(self, seconds: dict[str, float]) -> Row:
        return {
            "seconds": round(seconds["gossip"], 4),
            "mib_s": round(self.mib / seconds["gossip"], 1),
            "bare_seconds": round(seconds["bare"], 4),
            "bare_mib_s": round(self.mib / seconds["bare"], 1),
            "of_bare": round(seconds["bare"] / seconds["gossip"], 3),
            "tcp_seconds": round(seconds["tcp"], 4),
            "tcp_mib_s": round(self.mib / seconds["tcp"], 1),
        }

    def summaries(self, rows: Sequence[Row]) -> Sequence[Summary]:
        """Return tables of these rows."""
        notes = [
            "time: from the call to publish until the other process holds verified bytes; publish: the part before the "
            "announcement is out",
            "noise+yamux, TCP: the same bytes in the same run, over what it is built on, not hashed while timed",
        ]
        return [Summary(title=f"A blob of {self.mib} MiB", columns=COLUMNS, rows=with_medians(rows), notes=notes)]

    def draw(self, rows: Sequence[Row], figure: "Figure") -> None:
        """Draw the rows on an empty figure."""
        draw_speeds(rows, figure, {"mib_s": "blob", "bare_mib_s": "noise+yamux", "tcp_mib_s": "TCP"})


def with_medians(rows: Sequence[Row]) -> list[Row]:
    """Return the rows, and below them one of medians."""
    keys = dict.fromkeys(key for row in rows for key in row)
    found = {key: [value for row in rows if isinstance(value := row.get(key), float)] for key in keys}
    return [*rows, {**{key: statistics.median(each) for key, each in found.items() if each}, "repetition": "median"}]


def draw_speeds(rows: Sequence[Row], figure: "Figure", labels: dict[str, str], *, unit: str = "MiB a second") -> None:
    """Draw bars side by side, a group a repetition."""
    axes = figure.add_subplot()
    shown = {key: label for key, label in labels.items() if any(row.get(key) is not None for row in rows)}
    width = 0.8 / max(1, len(shown))
    for number, (key, label) in enumerate(shown.items()):
        speeds = [float(str(row.get(key) or 0.0)) for row in rows]
        axes.bar([place + number * width for place in range(len(rows))], speeds, width=width, label=label)
    axes.set_xticks(range(len(rows)), [str(row["repetition"]) for row in rows])
    axes.set_xlabel("repetition")
    axes.set_ylabel(unit)
    axes.legend()
