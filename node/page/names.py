"""Names of peers: by the certificates of a private swarm, and by the folders of nodes that share a run folder.

No node announces a name for itself: an open swarm's peer on another machine has only its id.
"""

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from node.events.event_types import Started
from node.events.log import event_in
from node.system.run_dir import EVENTS

MAX_FOLDERS: Final = 64
"""Most folders read: as many nodes as `p2ptrain up` starts. Further nodes are shown by their ids."""

HEAD_BYTES: Final = 1 << 14
"""Bytes read of a log: `started` is among its first lines, and has a kilobyte at most."""

AGAIN_S: Final = 10.0
"""Seconds between two looks at the folders. Chosen: nodes that start together are all there after a few seconds."""


class Names:
    """Names by peer id. `certified` returns names by the swarm's certificates, each time; they override folders."""

    def __init__(self, run_dir: Path | None = None, certified: Callable[[], Iterable[tuple[str, str]]] = tuple) -> None:
        self._run_dir = run_dir
        self._certified = certified
        self._read: dict[Path, tuple[int, str]] = {}
        """By folder, the inode of its log, which changes when the log is full or is another node's, and the peer."""
        self._next_look = 0.0

    def known(self) -> dict[str, str]:
        """Return every name that is known now."""
        if self._run_dir is not None and time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + AGAIN_S
            self._look(self._run_dir)
        names = {peer: folder.name for folder, (_, peer) in self._read.items()}
        return names | {peer: name for peer, name in self._certified() if name}

    def _look(self, run_dir: Path) -> None:
        self._read = {folder: known for folder, known in self._read.items() if folder.is_dir()}
        for log in sorted(run_dir.glob(f"*/{EVENTS}")):
            folder, inode = log.parent, _inode(log)
            before, peer = self._read.get(folder, (0, ""))
            if inode == before or (not peer and len(self._read) >= MAX_FOLDERS):
                continue
            peer = peer_in(log) or peer  # of a full log that was begun anew the beginning is elsewhere
            if peer:
                self._read[folder] = inode, peer


def _inode(log: Path) -> int:
    try:
        return log.stat().st_ino
    except OSError:
        return 0


def peer_in(log: Path) -> str:
    """Return the id of the node that wrote a log, from the log's beginning; empty where it is not there."""
    try:
        with log.open("rb") as file:
            head = file.read(HEAD_BYTES)
    except OSError:
        return ""
    events = map(event_in, head.splitlines())
    return next((event.peer_id for event in events if isinstance(event, Started)), "")
