"""The sources of `top`: a run's folder, whose logs it follows and whose running nodes it asks, or one node's address.

A log is read once, and later from the last position. So a long log is read whole only once.
"""

import math
import os
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Protocol

from node.events.event_types import Event, RoundClosed
from node.events.liveness import judge, look
from node.events.log import event_in, older
from node.events.progress import NodeProgress
from node.page.history import Curve
from node.system.errors import RunError
from node.system.run_dir import CONFIG, EVENTS, node_dirs
from node.top.remote import fetch, token_of

ASK_S = 1.0
"""Seconds that a node of this machine may take to answer: its event loop is never busy for so long."""

MAX_ASKED = 8
"""Most nodes that are asked at each look, for scores and lag; where there are more, only logs are read."""

TREND_POINTS = 64
"""Points kept of the loss: more than the widest sparkline."""

READ_BYTES = 1 << 20
"""Bytes of a piece in which a log is read."""


@dataclass
class Watched:
    """A node as `top` sees it, with its training loss over the rounds."""

    progress: NodeProgress
    folder: Path | None = None
    trend: Curve = field(default_factory=lambda: Curve(TREND_POINTS))

    def measured(self) -> None:
        """Add the newest loss to the trend."""
        it = self.progress
        if it.train_loss is not None and it.rounds_done:
            self.trend.add(it.rounds_done, it.train_loss)

    def losses(self) -> list[float]:
        """Return the values that a sparkline draws: logarithms where they exist, since a loss falls ever more
        slowly."""
        found = [row[1] for row in self.trend.rows if row[1] is not None]
        return [math.log(loss) for loss in found] if min(found, default=0.0) > 0 else found


class Source(Protocol):
    """Gives the nodes as they are now."""

    def look(self) -> list[Watched]:
        """Return the nodes as they are now. Raises RunError or UsageError when there is none to show."""


class AddressSource:
    """One node, by its page."""

    def __init__(self, url: str, token: str = "") -> None:
        self._url, self._token = url, token
        self._node: Watched | None = None
        self._answered = 0.0

    def look(self) -> list[Watched]:
        """Ask the node. One that answered before and does not now is returned as it was, marked silent."""
        try:
            progress = fetch(self._url, self._token, timeout_s=ASK_S)
        except RunError:
            if self._node is None:
                raise
            if not self._node.progress.over:
                self._node.progress.state = "silent"
                self._node.progress.heartbeat = self._answered
            return [self._node]
        self._answered = time.time()
        if self._node is None:
            self._node = Watched(progress)
        self._node.progress = progress
        self._node.measured()
        return [self._node]


class FolderSource:
    """The nodes of a run folder, or one node's folder, while they run or after."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._logs: dict[Path, Log] = {}

    def look(self) -> list[Watched]:
        """Read the folders, new ones included."""
        folders = node_dirs(self._folder)
        for folder in folders:
            self._logs.setdefault(folder, Log(folder))
            self._logs[folder].follow()
        asked = len(folders) <= MAX_ASKED
        return [self._logs[folder].now(ask=asked) for folder in folders]


class Log:
    """A node's event log, followed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._inode = 0
        """Inode of the file that was read up to `_offset`; 0: none yet."""
        self._offset = 0
        self._pending = b""
        self._node = Watched(NodeProgress(folder.name), folder)
        self._token: str | None = None

    def follow(self) -> None:
        """Read what was written since. A full log was renamed, and a new one begun."""
        path = self._folder / EVENTS
        for file in (older(path), path):
            with suppress(FileNotFoundError), file.open("rb") as log:
                self._read(log, is_newest=file == path)

    def now(self, *, ask: bool) -> Watched:
        """Return the node by its log; with `ask`, and where it runs, also with its current values."""
        it = self._node.progress
        judge(it, look(self._folder), time.time())
        if not ask or it.over or not it.metrics_url:
            return self._node
        if it.state == "starting":  # the address is that of its last process: another user's program may have its port
            return self._node
        if self._token is None:
            self._token = token_of(self._folder / CONFIG)
        try:
            live = fetch(it.metrics_url, self._token, timeout_s=ASK_S)
        except RunError:
            return self._node  # it starts, it ends, or it was killed: only the log remains
        if live.peer_id != it.peer_id:  # another node has its port by now
            return self._node
        return replace(self._node, progress=replace(it, peers=live.peers, loop_lag_s=live.loop_lag_s))

    def _read(self, log: IO[bytes], *, is_newest: bool) -> None:
        inode = os.fstat(log.fileno()).st_ino
        if inode == self._inode:
            log.seek(self._offset)
        elif is_newest or not self._inode:
            self._inode, self._offset, self._pending = inode, 0, b""
        else:
            return  # older than the log read already
        while chunk := log.read(READ_BYTES):
            *lines, self._pending = (self._pending + chunk).split(b"\n")
            self._offset += len(chunk)
            for line in lines:
                event = event_in(line)
                if event is not None:
                    self._take(event)

    def _take(self, event: Event) -> None:
        self._node.progress.observe(event)
        if isinstance(event, RoundClosed):
            self._node.measured()


def source_of(run: str, token: str = "") -> Source:
    """Return the source for a folder or a URL, as `p2ptrain status` takes them."""
    if run.startswith(("http://", "https://")):
        return AddressSource(run, token)
    return FolderSource(Path(run))
