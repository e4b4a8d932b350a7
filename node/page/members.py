"""The nodes of a folder of runs, by their logs: what the swarm's page shows of each.

A log is read once (of a long one only evenly spaced parts), and later from the last position. Reading and parsing may
happen on a thread (`read`, `news_of`); the result is applied where the page is served (`NodeLog.take`).
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from node.events.event_types import Evaluated, Event, RoundClosed
from node.events.liveness import lives
from node.events.log import event_in
from node.events.page_address import page_of
from node.events.progress import NodeProgress
from node.page.columns import COLUMNS, Columns, number
from node.page.history import Curve
from node.page.replay import events_in
from node.system.errors import UsageError
from node.system.run_dir import EVENTS, LOCK, natural

MAX_MEMBERS: Final = 1000
"""Most members on one page, as in the picture of a swarm; more are counted."""

MAX_EXCHANGES: Final = 64
"""Most peers of a member whose updates went into its newest round: more than any mesh degree."""

READ_BYTES: Final = 64 << 20
"""Most bytes of all logs together read at first, shared evenly: some three seconds on a thread. Chosen."""

LEAST_BYTES: Final = 1 << 16
"""Least bytes of one log read at first: some 40 rounds, enough for a line."""

NEWS_BYTES: Final = 1 << 20
"""Most bytes of one log at one look: more was written while no page was open, and only its end is read."""

CURVE: Final = ("train_loss", "tokens_per_s", "sent_bytes_per_s", "consensus_distance")
"""The columns of COLUMNS that are compared, besides the held-out loss."""

_CURVE_AT: Final = tuple(1 + COLUMNS.index(name) for name in CURVE)

_SHOWN: Final = (
    "rounds_done",
    "rounds",
    "train_loss",
    "eval_loss",
    "tokens_per_s",
    "bytes_sent",
    "bytes_received",
    "sent_bits",
    "published_bits",
    "neighbours",
    "rejected",
    "updates_in_time",
    "utilization",
    "updated_at",
)


def points_for(members: int) -> int:
    """Return the points of each curve when so many members are compared: all together have some 100,000 numbers."""
    return 512 if members <= 16 else 256 if members <= 64 else 64


@dataclass
class LogPosition:
    """The position up to which a log was read."""

    inode: int = 0
    offset: int = 0


@dataclass
class NodeLog:
    """One node by its log. `run`: the folder that it shares with the others of its run."""

    folder: Path
    run: Path
    points: int = 512
    progress: NodeProgress = field(init=False)
    rounds: Curve = field(init=False)
    held_out: Curve = field(init=False)
    exchanges: dict[str, int] = field(default_factory=dict)
    """By peer id, the staleness of the update that went into its newest round."""
    lives: bool = False
    """Whether the process that holds its folder is alive."""
    place: LogPosition = field(default_factory=LogPosition)

    def __post_init__(self) -> None:
        self.progress = NodeProgress(self.folder.name)
        self.rounds, self.held_out = Curve(self.points), Curve(self.points)
        self._columns = Columns()

    def take(self, event: Event) -> None:
        """Apply one event."""
        self.progress.observe(event)
        match event:
            case RoundClosed():
                row = self._columns.row(event)
                self.rounds.add(event.round, *(row[at] for at in _CURVE_AT))
                if event.staleness is not None:
                    first = list(event.staleness.items())[:MAX_EXCHANGES]
                    self.exchanges = {peer: value for peer, value in first if isinstance(value, int)}
            case Evaluated():
                self.held_out.add(event.round, number(event.eval_loss))

    @property
    def state(self) -> str:
        """Return its state by its events; `dead` where its process is gone without an event of its end."""
        return self.progress.shown_state if self.progress.over or self.lives else "dead"

    def as_dict(self) -> dict[str, Any]:
        """Return what a page shows of it."""
        it = self.progress
        lives = self.lives and not it.over
        return {
            "name": self.folder.name,
            "run": str(self.run),
            "state": self.state,
            "peer_id": it.peer_id,
            "page": page_of(it.metrics_url) if lives and it.metrics_url else None,
            "wants_token": it.token_file is not None,
            "join_command": it.join_command if lives else None,
        } | {name: getattr(it, name) for name in _SHOWN}


def find(paths: Iterable[Path]) -> list[tuple[Path, Path]]:
    """Return run folder and node folder of every node under `paths`. Each path is a node's folder, a run's, or a folder
    of runs. Raises UsageError where there is none."""
    found: dict[Path, Path] = {}
    for path in paths:
        nodes = list(_nodes(path))
        if not nodes:
            why = f"no {EVENTS} in it, nor one or two levels below"
            if not path.is_dir():
                why = "it is a file" if path.exists() else "there is no such folder"
            raise UsageError(f"{path} is not a run folder: {why}", "look under runs/")
        found |= {folder: folder.parent for folder in nodes}
    return [(run, folder) for folder, run in found.items()]


def _nodes(path: Path) -> Iterator[Path]:
    for pattern in (EVENTS, f"*/{EVENTS}", f"*/*/{EVENTS}"):
        logs = sorted(path.glob(pattern), key=lambda log: (natural(log.parent.parent), natural(log.parent)))
        if logs:
            yield from (log.parent for log in logs)
            return


def read(folders: Sequence[tuple[Path, Path]], *, among: int) -> list[NodeLog]:
    """Return new members, with their logs read so far. `among`: how many there are on the page, these included."""
    share = max(LEAST_BYTES, READ_BYTES // max(1, among))
    members = []
    for run, folder in folders:
        member = NodeLog(folder, run, points_for(among))
        member.place, end = _end_of(folder / EVENTS)
        for event in events_in(folder / EVENTS, end, share=share):
            member.take(event)
        member.lives = lives(folder / LOCK)
        members.append(member)
    return members


def _end_of(log: Path) -> tuple[LogPosition, int]:
    """Return the position after the log's last whole line."""
    try:
        with log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - NEWS_BYTES))
            tail = file.read(NEWS_BYTES)
            end = size - (len(tail) - tail.rfind(b"\n") - 1)
            return LogPosition(os.fstat(file.fileno()).st_ino, end), end
    except OSError:
        return LogPosition(), 0


def news_of(folder: Path, place: LogPosition) -> tuple[list[Event], LogPosition]:
    """Return the events that were written after `place`, and the position after them. A full log was renamed: then the
    new one is read from its beginning."""
    try:
        with (folder / EVENTS).open("rb") as file:
            inode, size = os.fstat(file.fileno()).st_ino, file.seek(0, os.SEEK_END)
            offset = place.offset if inode == place.inode and place.offset <= size else 0
            skipped = max(0, size - NEWS_BYTES - offset)
            file.seek(offset + skipped)
            data = file.read(NEWS_BYTES)
    except OSError:
        return [], place
    whole = data[: data.rfind(b"\n") + 1]
    lines = whole.splitlines()[1 if skipped else 0 :]
    events = [event for line in lines if (event := event_in(line)) is not None]
    return events, LogPosition(inode, offset + skipped + len(whole))
