"""What Prometheus is to scrape of a run, as its file and HTTP service discovery read it (file_sd, http_sd).

A run's folder says it all: each node's log names its metrics address and, where it came to one, its end. A node that
has ended is left out. One that was killed could not say so; it stays listed for FORGET_S, since a node that is listed
and silent is what the alert NodeDown is about, and is then forgotten: at once, where all others end as they should.
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
"""A killed node is listed for so long after its last event: NodeDown fires after one minute, and whoever looks at the
dashboard within the hour sees it."""

ENDED = frozenset({"finished", "interrupted"})
"""States in which nobody is to miss a node. One that `failed` is missed, like one that was killed."""


class Entry(TypedDict):
    """One node, in Prometheus' words."""

    targets: list[str]
    labels: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class _Seen:
    """A node's folder at one look. `entry`: none where it serves no metrics. `updated_at`: of its last event."""

    entry: Entry | None
    updated_at: float
    ended: bool
    lives: bool

    def is_missed(self, now: float, over_at: float) -> bool:
        """Whether it is to be scraped. `over_at`: when the last of the others ended, where nobody lives any more: who
        fell before that belongs to a run that was brought to its end, and is not to wake anybody."""
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
        """Those to be scraped, `now` in Unix seconds. Folders that have come meanwhile are seen, too. UsageError while
        there is no node's folder."""
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
        """The same; nobody, while there is no node's folder yet."""
        try:
            return self.look(now)
        except UsageError:
            return []


def entry(url: str, *, swarm: str, run: str, node: str) -> Entry:
    """One node. A wildcard address is no address to dial: whoever reads this file is on the machine that wrote it."""
    address = url.removeprefix("http://").rstrip("/")
    for wildcard, loopback in (("0.0.0.0:", "127.0.0.1:"), ("[::]:", "[::1]:")):
        if address.startswith(wildcard):
            address = loopback + address.removeprefix(wildcard)
    return {"targets": [address], "labels": {"swarm": swarm, "run": run, "node": node}}


def to_text(entries: Iterable[Entry]) -> str:
    """The file's content."""
    return json.dumps(list(entries), indent=2) + "\n"


def to_line(entries: Iterable[Entry]) -> str:
    """The same on one line, for whoever reads change by change."""
    return json.dumps(list(entries)) + "\n"


def swarm_of(folder: Path) -> str:
    """The swarm's name in a node's settings; empty where they cannot be read."""
    try:
        section = tomllib.loads((folder / CONFIG).read_text(encoding="utf-8")).get("network")
    except (OSError, ValueError):
        return ""
    return str(section.get("swarm", "")) if isinstance(section, dict) else ""
