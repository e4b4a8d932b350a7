"""The feed of a node's page: the node's state, curves, log lines, peers and graph, as far as they are new to a page.

Nothing is queued for a page. Each has a `FeedPosition`, and the feed returns what has changed since. A slow page asks
less often and gets the same in fewer messages.
"""

import json
import shlex
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import trio

from node.events.event_types import (
    Banned,
    CheckpointSkipped,
    DialFailed,
    Equivocation,
    Evaluated,
    Event,
    Failed,
    Finished,
    NeighbourLost,
    Rejected,
    RoundClosed,
    Throttled,
    WarningEvent,
)
from node.events.lines import describe
from node.events.log import to_line
from node.events.peers_seen import seen
from node.events.progress import MAX_OWN, NodeProgress
from node.page.columns import COLUMNS, Columns, own_of
from node.page.history import Cursor, Curve, CurveDelta
from node.page.replay import earlier_rounds
from node.system.light_roles import WITHOUT_MODEL
from node.system.next_command import export_words

MAX_LINES = 200
"""Most lines of the log kept, the newest ones; events.jsonl has all."""

MAX_CHARACTERS = 400
"""Most characters of a line: a peer decides the length of some texts in it."""

MAX_DRAWN = 1000
"""Most members drawn in the swarm's picture; more are counted. A record names its neighbours, so there may be many."""

LEVELS: dict[type[Event], str] = {
    WarningEvent: "warn",
    Rejected: "warn",
    Throttled: "warn",
    DialFailed: "warn",
    NeighbourLost: "warn",
    CheckpointSkipped: "warn",
    Banned: "bad",
    Equivocation: "bad",
    Failed: "bad",
    Finished: "good",
}
"""Importance of a line by its event; all other lines are ordinary."""

FRESH_S = 0.25
"""Greatest age in seconds of values sent again when no event came since: half of the least time between two
messages."""

_DIGITS = 6
"""Significant digits of a point: more than a screen shows."""


@dataclass(frozen=True, kw_only=True)
class LiveSnapshot:
    """Current values that no event has. `peers`: fields by peer id, added to those from events; `graph`: who is whose
    neighbour, by tags; `tags`: those of this node (under its own id) and of its neighbours."""

    peers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    graph: Mapping[bytes, frozenset[bytes]] = field(default_factory=dict)
    tags: Mapping[str, bytes] = field(default_factory=dict)
    loop_lag_s: float | None = None


@dataclass
class FeedPosition:
    """How much one page has received."""

    train: Cursor = field(default_factory=Cursor)
    held_out: Cursor = field(default_factory=Cursor)
    own: dict[str, Cursor] = field(default_factory=dict)
    lines: int = 0
    told: dict[str, str] = field(default_factory=dict)
    """The newest text sent of each part that is sent whole: `columns`, `state`, `peers`, `graph`, `settings`."""


class Feed:
    """Everything that the page shows. `observe` is a sink of the event log, after the progress, on the event loop."""

    def __init__(
        self,
        progress: NodeProgress,
        *,
        moment: Callable[[], LiveSnapshot] = LiveSnapshot,
        log: Path | None = None,
        settings: Mapping[str, Any] | None = None,
        names: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        """`log`: the event log, whose earlier rounds are read when the first page asks. `settings`: by section and key,
        secrets hidden. `names`: what peers are called, by peer id."""
        self.events = 0
        self._progress = progress
        self._moment = moment
        self._names = names
        self._settings = {} if settings is None else settings
        self._columns = Columns()
        self._train, self._held_out = Curve(), Curve()
        self._own: dict[str, Curve] = {}
        self._lines: deque[tuple[float, str, str]] = deque(maxlen=MAX_LINES)
        self._line_count = 0
        self._log = log
        self._log_end = log.stat().st_size if log is not None and log.exists() else 0
        self._replayed = trio.Lock()
        self._changed = trio.Event()
        self._texts: dict[str, str] = {}
        self._made: float | None = None
        self._graph: tuple[dict[bytes, frozenset[bytes]], dict[str, bytes]] | None = None

    def watch(self, moment: Callable[[], LiveSnapshot]) -> None:
        """Call `moment` for the values that no event has from now on."""
        self._moment = moment

    def observe(self, event: Event) -> None:
        """Apply one event, and wake the pages."""
        match event:
            case RoundClosed():
                self._train.add(event.round, *self._columns.row(event)[1:])
            case Evaluated():
                self._held_out.add(event.round, event.eval_loss)
                for name, value in own_of(event).items():
                    if name in self._own or len(self._own) < MAX_OWN:
                        self._own.setdefault(name, Curve()).add(event.round, value)
        for line in describe(event):
            words = _printable(line.plain)
            if words:
                self._lines.append((event.ts, LEVELS.get(type(event), ""), words))
                self._line_count += 1
        self._made = None
        self.events += 1
        self._changed.set()
        self._changed = trio.Event()

    async def changed(self, since: int) -> None:
        """Wait until there were more than `since` events."""
        if self.events == since:
            await self._changed.wait()

    async def replay(self) -> None:
        """Insert the run's earlier rounds before those of this process, once."""
        async with self._replayed:
            log, self._log = self._log, None
            if log is not None and self._log_end:
                read = partial(earlier_rounds, log, self._log_end)
                earlier = await trio.to_thread.run_sync(read)
                self._train.put_before(earlier.rounds)
                self._held_out.put_before(earlier.held_out)
                for name, rows in earlier.own.items():
                    if name in self._own or len(self._own) < MAX_OWN:
                        self._own.setdefault(name, Curve()).put_before(rows)

    def status(self) -> dict[str, Any]:
        """Return the node's whole state as JSON values, for `/status`."""
        return self._status(self._moment())

    def place(self) -> FeedPosition:
        """Return the position of a page that has received nothing yet."""
        return FeedPosition()

    def news(self, place: FeedPosition) -> str:
        """Return what is new to a page, as one line of JSON, and advance its place; empty when nothing is."""
        told: dict[str, str] = {}
        for key, text in self._whole().items():
            if place.told.get(key) != text:
                place.told[key] = told[key] = text
        for key in ("train", "held_out"):
            curve: Curve = getattr(self, f"_{key}")
            news = curve.since(getattr(place, key))
            if news is not None:
                setattr(place, key, news.cursor)
                told[key] = _text(points_of(news))
        own = self._own_news(place)
        if own:
            told["own"] = _text(own)
        if place.lines < self._line_count:
            new = min(self._line_count - place.lines, len(self._lines))
            told["log"] = _text({"lines": list(self._lines)[-new:]})
            place.lines = self._line_count
        return "{" + ", ".join(f'"{key}": {text}' for key, text in told.items()) + "}" if told else ""

    def _own_news(self, place: FeedPosition) -> dict[str, Any]:
        told = {}
        for name, curve in self._own.items():
            news = curve.since(place.own.get(name, Cursor()))
            if news is not None:
                place.own[name] = news.cursor
                told[name] = points_of(news)
        return told

    def _status(self, moment: LiveSnapshot) -> dict[str, Any]:
        state, names = self._progress.as_dict(), self._names()
        for peer, fields in moment.peers.items():
            seen(state["peers"], peer).update(fields)
        for peer, it in state["peers"].items():
            if peer in names:
                it["name"] = _printable(names[peer])
        return state | {"loop_lag_s": moment.loop_lag_s, "heartbeat": round(time.time(), 3)}

    def _whole(self) -> dict[str, str]:
        """Return the parts that are sent whole, as text, made once for all pages that ask at the same time."""
        if self._made is None or time.monotonic() - self._made > FRESH_S:
            moment = self._moment()
            state = self._status(moment)
            peers = state.pop("peers")
            for key in (
                "summary",
                "warnings",
                "heartbeat",
            ):  # the log has them; and the message itself shows that the node is alive
                del state[key]
            if not self._texts:
                self._texts["columns"] = json.dumps(COLUMNS)
                self._texts["settings"] = _text(dict(self._settings))
            state["export_command"] = export_command(self._progress)
            self._texts["state"], self._texts["peers"] = _text(state), _text(peers)
            graph = (dict(moment.graph), dict(moment.tags))
            if graph != self._graph:  # it changes rarely, and is by far the longest in a large swarm
                self._graph, self._texts["graph"] = graph, _text(_drawn(*graph))
            self._made = time.monotonic()
        return self._texts


def export_command(progress: NodeProgress) -> str | None:
    """Return the command that exports this node's model; None where it has none."""
    if progress.run_dir is None or progress.role in WITHOUT_MODEL:
        return None
    folder = Path(progress.run_dir).absolute()
    return shlex.join(["p2ptrain", *export_words(folder)])


def _text(value: dict[str, Any]) -> str:
    return to_line(value).rstrip("\n")


def points_of(news: CurveDelta) -> dict[str, Any]:
    """Return the points that a page lacks, as JSON values."""
    rows = [[None if value is None else float(f"{value:.{_DIGITS}g}") for value in row] for row in news.rows]
    return {"start": news.start, "rows": rows}


def _drawn(graph: Mapping[bytes, frozenset[bytes]], tags: Mapping[str, bytes]) -> dict[str, Any]:
    """Return the graph with numbers instead of tags: `members` by number (peer id where it is known), `edges` between
    numbers. This node and its neighbours come first."""
    names = {tag: peer for peer, tag in tags.items()}
    first = list(tags.values())
    others = sorted(set(graph) - set(first))
    shown = [*first, *others][:MAX_DRAWN]
    numbers = {tag: number for number, tag in enumerate(shown)}
    edges = sorted(
        (number, numbers[other])
        for tag, number in numbers.items()
        for other in graph.get(tag, ())
        if number < numbers.get(other, -1)
    )
    return {
        "members": [names.get(tag, tag.hex()) for tag in shown],
        "edges": edges,
        "left_out": len(first) + len(others) - len(shown),
    }


def _printable(text: str) -> str:
    """Return the text without characters that control a terminal or a page, such as a change of writing direction."""
    shown = "".join(char if char.isprintable() else " " for char in text).strip()
    return shown if len(shown) <= MAX_CHARACTERS else f"{shown[: MAX_CHARACTERS - 3]}..."
