"""The scrape targets of a run, in the format of Prometheus' file and HTTP service discovery (file_sd, http_sd).

A run's folder is enough: each node's log has its metrics address and, if it ended normally, its end. A node that has
ended is left out. A killed node could not log its end. It stays listed for FORGET_S, since the alert NodeDown needs a
node that is listed and silent. It is forgotten after that, or at once where all others have ended normally.
"""

import json
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from node.events.liveness import lives
from node.system.errors import UsageError
from node.system.run_dir import CONFIG, LOCK, node_dirs
from node.top.source import Log

FORGET_S = 3600.0
"""Seconds for which a killed node is listed after its last event: NodeDown fires after one minute, and the dashboard
shows it for an hour."""

ENDED = frozenset({"finished", "interrupted"})
"""States in which an absent node raises no alert. One that `failed` does, like one that was killed."""


class Entry(TypedDict):
    """One node in Prometheus' format."""

    targets: list[str]
    labels: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class _Seen:
    """A node's folder at one look. `entry`: None where it serves no metrics. `updated_at`: time of its last event."""

    entry: Entry | None
    updated_at: float
    ended: bool
    lives: bool

    def is_missed(self, now: float, over_at: float) -> bool:
        """Return whether the node is to be scraped. `over_at`: when the last of the others ended, where no node is
        alive any more. A node that died before belongs to a run that has ended, and should raise no alert."""
        if self.lives or self.ended:
            return self.lives
        return self.updated_at > max(over_at, now - FORGET_S)


class RunTargets:
    """The nodes of a run folder, or one node's folder. `run`: the label; by default the folder's name."""

    def __init__(self, folder: Path, run: str = "") -> None:
        self._folder = folder
        self._run = run
        self._logs: dict[Path, Log] = {}

    def look(self, now: float) -> list[Entry]:
        """Return the nodes to scrape, `now` in Unix seconds. New folders are included. Raises UsageError while there is
        no node's folder."""
        seen = [self._see(folder) for folder in node_dirs(self._folder)]
        over_at = 0.0
        if not any(it.lives for it in seen):
            over_at = max((it.updated_at for it in seen if it.ended), default=0.0)
        return [it.entry for it in seen if it.entry is not None and it.is_missed(now, over_at)]

    def _see(self, folder: Path) -> "_Seen":
        log = self._logs.setdefault(folder, Log(folder))
        log.follow()
        node = log.now(ask=False).progress
        run = self._run or folder.resolve().parent.name
        url = node.metrics_url
        return _Seen(
            entry=entry(url, swarm=swarm_of(folder), run=run, node=folder.name) if url else None,
            updated_at=node.updated_at or 0.0,
            ended=node.state in ENDED,
            lives=node.state not in ENDED and lives(folder / LOCK),
        )

    def look_patiently(self, now: float) -> list[Entry]:
        """Return the nodes to scrape; none while there is no node's folder yet."""
        try:
            return self.look(now)
        except UsageError:
            return []


def entry(url: str, *, swarm: str, run: str, node: str) -> Entry:
    """Return the entry of one node. A wildcard address cannot be dialled and is replaced by loopback: this file is read
    on the machine that wrote it."""
    address = url.removeprefix("http://").rstrip("/")
    for wildcard, loopback in (("0.0.0.0:", "127.0.0.1:"), ("[::]:", "[::1]:")):
        if address.startswith(wildcard):
            address = loopback + address.removeprefix(wildcard)
    return {"targets": [address], "labels": {"swarm": swarm, "run": run, "node": node}}


def to_text(entries: Iterable[Entry]) -> str:
    """Return the file's content."""
    return json.dumps(list(entries), indent=2) + "\n"


def to_line(entries: Iterable[Entry]) -> str:
    """Return the content on one line, for programs that read one change a line."""
    return json.dumps(list(entries)) + "\n"


def swarm_of(folder: Path) -> str:
    """Return the swarm's name in a node's settings; empty where they cannot be read."""
    try:
        section = tomllib.loads((folder / CONFIG).read_text(encoding="utf-8")).get("network")
    except (OSError, ValueError):
        return ""
    return str(section.get("swarm", "")) if isinstance(section, dict) else ""
