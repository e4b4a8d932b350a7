"""What peers are called: by the certificates of a private swarm, and by the folders of nodes that share a run folder.

Nobody names itself to others: an open swarm's peer on another machine has its id alone.
"""

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from node.events.event_types import Started
from node.events.log import event_in
from node.system.run_dir import EVENTS

MAX_FOLDERS: Final = 64
"""As many nodes as `p2ptrain up` starts; of more the rest keep their ids."""

HEAD_BYTES: Final = 1 << 14
"""Of a log: `started` is among its first lines, and has a kilobyte at most."""

AGAIN_S: Final = 10.0
"""Between two looks at the folders; chosen: nodes that start together are all there after a few seconds."""


class Names:
    """By peer id. `certified`: names by the swarm's certificates, asked for each time; they come before folders."""

    def __init__(self, run_dir: Path | None = None, certified: Callable[[], Iterable[tuple[str, str]]] = tuple) -> None:
        self._run_dir = run_dir
        self._certified = certified
        self._read: dict[Path, str] = {}
        self._next_look = 0.0

    def known(self) -> dict[str, str]:
        """Every name that is known now."""
        if self._run_dir is not None and time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + AGAIN_S
            self._look(self._run_dir)
        names = {peer: folder.name for folder, peer in self._read.items()}
        return names | {peer: name for peer, name in self._certified() if name}

    def _look(self, run_dir: Path) -> None:
        logs = (path for path in run_dir.glob(f"*/{EVENTS}") if path.parent not in self._read)
        for path in sorted(logs)[: MAX_FOLDERS - len(self._read)]:
            peer = peer_in(path)
            if peer:
                self._read[path.parent] = peer


def peer_in(log: Path) -> str:
    """The id of the node that wrote a log, by the log's beginning; empty where it does not say."""
    try:
        with log.open("rb") as file:
            head = file.read(HEAD_BYTES)
    except OSError:
        return ""
    events = map(event_in, head.splitlines())
    return next((event.peer_id for event in events if isinstance(event, Started)), "")
