"""What is kept of a node's events while it runs: a digest of all, and what is judged at the end."""

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from node.events.event_types import Banned, Evaluated, Event, RoundTrained

OF_THE_MACHINE: Final = frozenset(
    {
        "rss_bytes",
        "cpu_s",
        "gpu_share",
        "gpu_memory_bytes",
        "pid",
        "path",
        "checkpoint",
        "run_dir",
        "free_bytes",
    }
)
"""Fields of events that differ between machines and folders."""


@dataclass
class Observations:
    """Of one node, over all of its processes. `folder` is left out of the digest."""

    folder: Path
    digest: Any = field(default_factory=lambda: hashlib.blake2b(digest_size=16))
    rounds: int = 0
    """Closed so far, of the run."""
    closed: list[tuple[float, int]] = field(default_factory=list)
    """Virtual second and number of each closed round."""
    losses: list[tuple[float, int, float]] = field(default_factory=list)
    """Virtual second, rounds, held-out loss."""
    staleness: int = 0
    """The most rounds by which a model in an average lagged."""
    staleness_sum: int = 0
    staleness_count: int = 0
    payload_bytes: int = 0
    """Sent of updates and whole models, by all processes."""
    utilization: float | None = None
    banned: list[str] = field(default_factory=list)
    _payload_of_process: int = 0

    def observe(self, event: Event, now: float) -> None:
        """Take in an event."""
        told = {key: value for key, value in event.to_record().items() if key not in OF_THE_MACHINE}
        line = json.dumps(told, sort_keys=True, default=str)
        if self.folder.is_absolute():  # else its name may be any word of an event
            line = line.replace(json.dumps(str(self.folder))[1:-1], "")
        self.digest.update(f"{line}\n".encode())
        match event:
            case RoundTrained():
                self.rounds = max(self.rounds, event.round)
                self.closed.append((now, event.round))
                lags = list((event.staleness or {}).values())
                self.staleness = max([self.staleness, *lags])
                self.staleness_sum += sum(lags)
                self.staleness_count += len(lags)
                self._count_payload(event.payload_bytes_sent + event.snapshot_bytes_sent)
                self.utilization = self.utilization if event.utilization is None else event.utilization
            case Evaluated() if event.eval_loss is not None:
                self.losses.append((now, event.round, event.eval_loss))
            case Banned():
                self.banned.append(event.peer)

    def _count_payload(self, sent: int) -> None:
        """`sent`: by this process so far."""
        self.payload_bytes += sent - (self._payload_of_process if sent >= self._payload_of_process else 0)
        self._payload_of_process = sent

    @property
    def loss(self) -> float | None:
        """Return the newest held-out loss."""
        return self.losses[-1][2] if self.losses else None

    @property
    def mean_staleness(self) -> float | None:
        """Return the mean lag of a model in an average, in rounds."""
        return self.staleness_sum / self.staleness_count if self.staleness_count else None
