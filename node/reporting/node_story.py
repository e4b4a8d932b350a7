"""One node by its log, in bounded memory: its curves over rounds, seconds and bytes, and what happened to it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from node.events.event_types import (
    Banned,
    CheckpointFailed,
    Died,
    Diverged,
    Ended,
    Equivocation,
    Evaluated,
    Event,
    Failed,
    Finished,
    Joined,
    ManifestHolds,
    NeighbourLost,
    NeighbourUp,
    Paused,
    PrivacyBudgetSpent,
    Rejected,
    Resumed,
    RoundClosed,
    RoundTrained,
    ShiftDetected,
    Started,
    Unpaused,
    WarningEvent,
)
from node.events.progress import NodeProgress
from node.events.shift_words import of_shift
from node.page.columns import number
from node.page.history import Curve
from node.page.members import MAX_EXCHANGES
from node.reporting.log_lines import LineCounts, events_of
from node.reporting.thinning import PICTURED, Frames, Thinned
from node.system import text

MAX_TEXT: Final = 200
"""Most characters of an event's words: what others say is cut."""

MAX_PEERS: Final = 1000
"""Most peers whose updates are counted by name at one node."""

MAX_LINKS: Final = 20_000
"""Most comings and goings of links of one node that are looked through for partitions."""

LISTED: Final = 400
"""Most events of one kind that the report lists; more are counted."""

Moment = tuple[float, int, str, str]
"""Unix seconds, the node's number, a kind of KINDS, and words."""

KINDS: Final = ("join", "leave", "ban", "partition", "round", "refusal", "pause", "warning")
"""Kinds of moments on the timeline."""


@dataclass
class Moments:
    """The moments of all nodes, by kind; of many an even part is listed, and all are counted."""

    by_kind: dict[str, Thinned[Moment]] = field(default_factory=lambda: {kind: Thinned(LISTED) for kind in KINDS})

    def add(self, ts: float, node: int, kind: str, words: str) -> None:
        """Add one."""
        self.by_kind[kind].add((ts, node, kind, clipped(words)))

    def listed(self) -> list[Moment]:
        """Return those that are listed, in order of time."""
        return sorted(moment for kept in self.by_kind.values() for moment in kept)

    def counts(self) -> dict[str, int]:
        """Return how many there were of each kind."""
        return {kind: kept.added for kind, kept in self.by_kind.items() if kept.added}


@dataclass
class LinkChange:
    """A neighbour that came or went, as one node says."""

    ts: float
    peer: str
    up: bool


@dataclass
class NodeStory:
    """A node. `number`: its place in the report; `run`: the folder that it shares with the others of its run."""

    number: int
    name: str
    run: Path
    points: int = 512
    progress: NodeProgress = field(init=False)
    counts: LineCounts = field(default_factory=LineCounts)
    rounds: Curve = field(init=False)
    """Round; Unix seconds, bytes sent, training loss, tokens a second."""
    held_out: Curve = field(init=False)
    """Round; Unix seconds, bytes sent, held-out loss."""
    averaged: dict[str, int] = field(default_factory=dict)
    """By peer id: rounds in which its update was averaged here."""
    stale: dict[str, int] = field(default_factory=dict)
    """By peer id: the sum of its staleness, in rounds."""
    closed: int = 0
    """Rounds closed, repeated ones included."""
    steps: float = 0.0
    """Steps of these rounds."""
    first_ts: float | None = None
    last_ts: float | None = None
    links: list[LinkChange] = field(default_factory=list)
    links_left_out: int = 0
    uncounted_bytes: bool = False
    """Whether its release did not count all bytes sent."""

    def __post_init__(self) -> None:
        self.progress = NodeProgress(self.name)
        self.rounds, self.held_out = Curve(self.points), Curve(self.points)
        self._sent = self._sent_before = 0

    @property
    def sent_bytes(self) -> int | None:
        """Return all bytes that it sent, in all its processes; None where its release did not count them."""
        return None if self.uncounted_bytes else self._sent_before + self._sent

    def read(self, log: Path, frames: Frames, moments: Moments) -> None:
        """Read its log. RunError where that cannot be."""
        for event in events_of(log, self.counts):
            self.take(event, frames, moments)

    def take(self, event: Event, frames: Frames, moments: Moments) -> None:
        """Apply one event."""
        self.progress.observe(_bounded(event))
        self.first_ts = event.ts if self.first_ts is None else min(self.first_ts, event.ts)
        self.last_ts = event.ts if self.last_ts is None else max(self.last_ts, event.ts)
        match event:
            case Started():
                self._sent_before += self._sent
                self._sent = 0
            case RoundClosed():
                self._close(event, frames)
            case Evaluated():
                sent = self.sent_bytes
                self.held_out.add(event.round, event.ts, sent, number(event.eval_loss))
            case NeighbourUp() | NeighbourLost():
                self._link(LinkChange(event.ts, clipped(event.peer), isinstance(event, NeighbourUp)))
        kind, words = told(event)
        if kind:
            moments.add(event.ts, self.number, kind, words)

    def _close(self, event: RoundClosed, frames: Frames) -> None:
        self.closed += 1
        if event.bytes_sent is None:
            self.uncounted_bytes = True
        else:
            if event.bytes_sent < self._sent:  # a new process, whose start is not in the log
                self._sent_before += self._sent
            self._sent = event.bytes_sent
        trained = event if isinstance(event, RoundTrained) else None
        loss = number(trained.train_loss) if trained else None
        speed = number(trained.tokens_per_s) if trained else None
        self.steps += max(0.0, number(trained.steps) or 0.0) if trained else 0.0
        self.rounds.add(event.round, event.ts, self.sent_bytes, loss, speed)
        drawn = self.number < PICTURED
        if drawn:
            frames.round(event.ts, self.number, event.round, loss)
        for peer, stale in staleness_of(event).items():
            if peer not in self.averaged and len(self.averaged) >= MAX_PEERS:
                continue
            self.averaged[peer] = self.averaged.get(peer, 0) + 1
            self.stale[peer] = self.stale.get(peer, 0) + stale
            if drawn:
                frames.exchange(event.ts, peer, self.number)

    def _link(self, link: LinkChange) -> None:
        if len(self.links) < MAX_LINKS:
            self.links.append(link)
        else:
            self.links_left_out += 1


def staleness_of(event: RoundClosed) -> dict[str, int]:
    """Return, of the members of a round's average, those with a name and a number of rounds: others' claims."""
    first = list((event.staleness or {}).items())[:MAX_EXCHANGES]
    return {clipped(peer): value for peer, value in first if type(value) is int and value >= 0}


def clipped(words: str) -> str:
    """Return the words on one line, not longer than MAX_TEXT."""
    line = " ".join(words.split())
    return line if len(line) <= MAX_TEXT else f"{line[: MAX_TEXT - 2]}.."


def _bounded(event: Event) -> Event:
    """Return the event without what only a person would be shown in full: a round's claims as they are counted here."""
    if isinstance(event, RoundClosed):
        weights = event.weights if isinstance(event, RoundTrained) else None
        small = event.at(event.ts)
        vars(small).update(staleness=staleness_of(event), rejected_by_reason=_counts(event.rejected_by_reason))
        if isinstance(event, RoundTrained):
            vars(small).update(
                weights={peer: each for peer, each in (weights or {}).items() if number(each) is not None}
            )
        return small
    if isinstance(event, Ended):
        ended = event.at(event.ts)
        vars(ended).update(summary=None)
        return ended
    return event


def _counts(told: Mapping[str, object] | None) -> dict[str, int] | None:
    if told is None:
        return None
    return {clipped(reason): count for reason, count in list(told.items())[:MAX_EXCHANGES] if type(count) is int}


def told(event: Event) -> tuple[str, str]:
    """Return the kind of moment that an event is, and its words; two empty strings of others."""
    match event:
        case Started():
            return "join", "started"
        case Joined():
            return "join", f"joined at round {event.round}, with {event.whose_model}"
        case Resumed():
            return "join", f"resumed at round {event.round}"
        case Ended():
            return "leave", "finished" if isinstance(event, Finished) else "was interrupted"
        case Failed():
            return "leave", f"failed: {event.error}"
        case Died():
            return "leave", f"died: {event.why}"
        case Diverged():
            return "leave", f"diverged at round {event.round}: {event.why}"
        case Banned():
            return "ban", f"banned {text.peer(event.peer)}: {event.reason or event.detail}"
        case Equivocation():
            return "ban", f"has a proof that {text.peer(event.peer)} signed two histories"
        case Rejected():
            return "refusal", f"refused {text.peer(event.peer)}: {event.reason or event.detail}"
        case Paused():
            return "pause", f"paused by {event.reason}: {event.why}"
        case Unpaused():
            return "pause", f"trains again after {text.duration(event.seconds)}"
        case PrivacyBudgetSpent():
            return "pause", f"spent its privacy budget of epsilon {event.budget:g}: it serves on"
        case ShiftDetected():
            return "warning", of_shift(event)
        case WarningEvent():
            return "warning", event.message
        case CheckpointFailed():
            return "warning", f"could not write the checkpoint of round {event.round}: {event.why}"
        case ManifestHolds():
            return "warning", f"version {event.version} of the manifest applies"
    return "", ""
