"""`p2ptrain bench average`: peers average a tensor each, by gossip, as separate processes over loopback.

Everyone publishes its tensor and pulls everyone else's, the full mesh that a swarm of up to eight is; or, where that
moves fewer bytes, everyone averages one part of all tensors and gives it to the others (network/averaging.py). Measured
from the first peer's start until the last holds the mean: encoding, hashing, announcements, the exchange, decoding and
the mean itself. That it is exact is checked after each repetition, by every peer, and all must hold the same bits.
hivemind averages as much in turns with it, where it is installed. A first turn of both warms up and is not told.
"""

import importlib.util
import secrets
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from node.bench.base import Column, Row, Summary, filled, within
from node.bench.blob import LEAST_MIB_S, PATIENCE_S, draw_speeds, with_medians
from node.bench.network import hivemind_peer
from node.bench.network.averaging import Way, way_for
from node.bench.network.workers import Worker, Workers
from node.system.errors import RunError, UsageError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_PEERS: Final = 16
"""A full mesh of processes on one machine: 120 connections, and 16 times 16 tensors in memory."""
MAX_MIB: Final = 1024
MIB: Final = 1 << 20
CODECS: Final = ("none", "q2")

COLUMNS: Final = (
    Column(key="repetition", title="repetition"),
    Column(key="seconds", title="time", unit="s", digits=3),
    Column(key="mib_s", title="averaged", unit="MiB/s", digits=1),
    Column(key="publish_seconds", title="publish", unit="s", digits=3),
    Column(key="payload_mib", title="payload", unit="MiB", digits=2),
    Column(key="rounding", title="error", unit="of rounding", digits=2),
    Column(key="hivemind_mib_s", title="hivemind", unit="MiB/s", digits=1),
    Column(key="of_hivemind", title="of its time", unit="times", digits=2),
)


@dataclass(frozen=True, kw_only=True)
class Average:
    """A measurement of `peers` processes that average a tensor of `mib` MiB each, several times. `hivemind`: a Python
    that has it; None: this one, where it does. `notes` is filled by `run`: why there is nothing to compare with."""

    peers: int
    mib: int
    codec: str
    repetitions: int
    seed: int = 0
    hivemind: Path | None = None
    name: str = "average"
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        within("peers", self.peers, 2, MAX_PEERS)
        within("mib", self.mib, 1, MAX_MIB)
        within("repetitions", self.repetitions, 1)
        if self.codec not in CODECS:
            raise UsageError(f"--codec: there is no {self.codec!r} here", f"there are: {', '.join(CODECS)}")
        if self.hivemind is not None and not self.hivemind.is_file():
            hint = "name the bin/python of an environment that has hivemind"
            raise UsageError(f"--hivemind: there is no file {self.hivemind}", hint)

    @property
    def way(self) -> Way:
        """Return how the tensors travel, in words."""
        return way_for(self.codec, self.mib * MIB, self.peers)

    def run(self) -> Iterator[Row]:
        """Measure; yield each row as soon as there is one: a row a repetition."""
        patience_s = PATIENCE_S + self.peers**2 * self.mib / LEAST_MIB_S
        with Workers(patience_s) as workers, Workers(PATIENCE_S + hivemind_peer.STEP_S) as theirs:
            other = self._hire_hivemind(theirs)
            peers, connected_s = self._gather(workers)
            for repetition in range(self.repetitions + 1):
                own = self._repeat(workers, peers, repetition)
                against: Row = {"hivemind_absent": self.notes[-1]} if self.notes else {}
                if other is not None:
                    against = self._against(theirs, other, own["seconds"])
                    other = None if self.notes else other
                if repetition:
                    settings = {"peers": self.peers, "mib": self.mib, "codec": self.codec, "way": self.way}
                    yield {"repetition": repetition, **settings, **own, **against, "meeting_seconds": connected_s}

    def _gather(self, workers: Workers) -> tuple[list[Worker], float]:
        """The peers, each a neighbour of all. All but the first know the first, and find the others through it."""
        peers = [workers.hire(f"peer {index}", "averager") for index in range(self.peers)]
        swarm = f"bench-{secrets.token_hex(8)}"
        join: list[str] = []
        for index, peer in enumerate(peers):
            workers.tell(
                peer,
                "start",
                index=index,
                peers=self.peers,
                mib=self.mib,
                codec=self.codec,
                way=self.way,
                seed=self.seed,
                swarm=swarm,
                join=join,
            )
            if index == 0:
                join = [workers.hear(peer, "listening")["address"]]
        workers.hear_all(peers[1:], "listening")
        workers.tell_all(peers, "connect")
        return peers, round(max(float(message["seconds"]) for message in workers.hear_all(peers, "connected")), 3)

    def _repeat(self, workers: Workers, peers: Sequence[Worker], repetition: int) -> dict[str, float]:
        workers.tell_all(peers, "prepare", repetition=repetition)
        workers.hear_all(peers, "prepared")
        workers.tell_all(peers, "average")
        told = workers.hear_all(peers, "averaged")
        workers.tell_all(peers, "check")
        checked = workers.hear_all(peers, "checked")
        if len({message["digest"] for message in checked}) > 1:
            raise RunError("the peers came to different means")
        seconds = max(message["ended"] for message in told) - min(message["began"] for message in told)
        return {
            "seconds": round(seconds, 4),
            "mib_s": round(self.peers * self.mib / seconds, 1),
            "publish_seconds": round(max(message["published"] - message["began"] for message in told), 4),
            "payload_mib": round(told[0]["payload_bytes"] / MIB, 3),
            "rounding": round(max(message["rounding"] for message in checked), 3),
        }

    def _hire_hivemind(self, workers: Workers) -> Worker | None:
        if self.hivemind is None and importlib.util.find_spec("hivemind") is None:
            self.notes.append("hivemind is not installed here, and not measured: --hivemind names a Python that has it")
            return None
        # Not resolved: a link to Python is what makes it the one of its environment.
        command = [str(self.hivemind or sys.executable), hivemind_peer.__file__, str(self.peers), str(self.mib)]
        child = workers.hire_command("hivemind", command)
        try:
            workers.hear(child, "ready")
        except RunError as error:
            self._without(error)
            return None
        return child

    def _against(self, workers: Workers, child: Worker, own: float) -> Row:
        try:
            workers.tell(child, "average")
            averaged = workers.hear(child, "averaged")
        except RunError as error:
            self._without(error)
            return {"hivemind_absent": self.notes[-1]}
        return {
            "hivemind_seconds": round(averaged["seconds"], 4),
            "hivemind_mib_s": round(self.peers * self.mib / averaged["seconds"], 1),
            "hivemind_error": averaged["error"],
            "of_hivemind": round(own / averaged["seconds"], 3),
        }

    def _without(self, error: RunError) -> None:
        self.notes.append(f"hivemind is not measured: {error.line()}")

    def summaries(self, rows: Sequence[Row]) -> Sequence[Summary]:
        """Return tables of these rows."""
        notes = [
            "time: from the first peer's start until the last holds the mean; MiB/s: of all tensors together",
            "error: the largest, over what rounding in fp32 allows; all peers hold the same bits",
            *self.notes,
        ]
        shown = filled(COLUMNS, rows)
        title = f"{self.peers} peers average {self.mib} MiB each, {self.codec}, by {self.way}"
        return [Summary(title=title, columns=shown, rows=with_medians(rows), notes=notes)]

    def draw(self, rows: Sequence[Row], figure: "Figure") -> None:
        """Draw the rows on an empty figure."""
        draw_speeds(rows, figure, {"mib_s": f"gossip, {self.codec}", "hivemind_mib_s": "hivemind"})
