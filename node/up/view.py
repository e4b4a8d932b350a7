"""What `p2ptrain up` shows while the swarm runs: a live table on a terminal, plain lines elsewhere, JSON on request.

A view whose reader goes away falls silent; the swarm trains on.
"""

import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType
from typing import IO, Protocol, Self

from rich.console import Console, RenderableType
from rich.live import Live

from node.events.event_types import (
    Banned,
    CheckpointSkipped,
    Died,
    Equivocation,
    Evaluated,
    Event,
    Failed,
    Finished,
    Interrupted,
    LearnerStarted,
    RoundClosed,
    WarningEvent,
)
from node.events.lines import left_out, words_of_left_out
from node.events.log import to_line
from node.events.progress import NodeProgress, common_evaluation
from node.events.summary import mean
from node.system import text
from node.system.aside import Aside
from node.system.safe_io import say
from node.top.table import MAX_NOTES, swarm_round, swarm_view

REFRESH_PER_SECOND = 4
"""Enough to look alive; each refresh costs a millisecond of a core that a node could use."""


class View(Protocol):
    """Shows a swarm. A context manager; `event` is called with each event after the progress has taken it up."""

    def __enter__(self) -> "View":
        """Begin to show."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Show the last state and leave the terminal as it was."""

    def event(self, name: str, event: Event) -> None:
        """Show a node's event, or the supervisor's about it."""


class LiveView:
    """A table that changes in place, with notes of what went wrong below it."""

    def __init__(
        self,
        console: Console,
        nodes: Sequence[NodeProgress],
        *,
        byzantine: frozenset[str] = frozenset(),
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._nodes, self._byzantine, self._clock, self._console = nodes, byzantine, clock, console
        self._began = clock()
        self._notes: deque[str] = deque(maxlen=MAX_NOTES)
        self._taker = NoteTaker()
        self._live = Live(
            console=console, get_renderable=self.render, refresh_per_second=REFRESH_PER_SECOND, transient=False
        )

    def __enter__(self) -> "LiveView":
        self._live.start(refresh=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def event(self, name: str, event: Event) -> None:
        """Keep what deserves a note; the table takes the rest from the nodes' progress."""
        line = self._taker.note(name, event)
        if line is not None:
            self._notes.append(line)

    def render(self) -> RenderableType:
        """Return the picture of this moment."""
        return swarm_view(
            self._nodes,
            now=self._clock(),
            began=self._began,
            notes=list(self._notes),
            byzantine=self._byzantine,
            width=self._console.width,
        )


class _Lines:
    """Lines on a stream, printed aside: the swarm is looked after while nobody reads them."""

    def __init__(self, stream: IO[str], missed: Callable[[int], str]) -> None:
        """`missed` makes the line that says how many were left out."""
        self._say = Aside(partial(say, stream), missed)

    def __enter__(self) -> Self:
        self._say.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._say.__exit__()


class PlainView(_Lines):
    """A line for each round of the swarm, and one for each note: logs, CI, pipes."""

    def __init__(self, stream: IO[str], nodes: Sequence[NodeProgress]) -> None:
        super().__init__(stream, lambda count: f"{words_of_left_out(count)}\n")
        self._nodes = nodes
        self._taker = NoteTaker()
        self._shown = 0

    def event(self, name: str, event: Event) -> None:
        """Print a note, or the swarm's round once every node has closed it."""
        line = self._taker.note(name, event)
        if line is not None:
            self._say(f"{line}\n")
        reached = swarm_round(self._nodes)
        if isinstance(event, _MOVING) and reached > self._shown and self._is_evaluated(reached):
            self._shown = reached
            self._say(f"{self._round_line(reached)}\n")

    def _is_evaluated(self, reached: int) -> bool:
        """Whether the line of a round can be told. That of the last one waits for its evaluations, which come after it:
        those of rounds before would read as what the run has come to."""
        working = [node for node in self._nodes if not node.over]
        return all(not node.rounds or reached < node.rounds or _has_evaluated(node, reached) for node in working)

    def _round_line(self, reached: int) -> str:
        held_out = common_evaluation(self._nodes)
        losses = [node.train_loss for node in self._nodes if node.train_loss is not None]  # withheld by a privatizer
        parts = [
            f"round {text.progress(reached, max(node.rounds for node in self._nodes))}",
            f"loss {text.loss(mean(losses))}",
            f"eval {text.loss(None if held_out is None else held_out[1])}",
            f"{text.amount(sum(node.tokens_per_s for node in self._nodes))} tokens/s",
            f"sent {text.size(sum(node.bytes_sent or 0 for node in self._nodes))}",
            f"accepted {sum(node.accepted for node in self._nodes)}",
            f"rejected {sum(node.rejected for node in self._nodes)}",
        ]
        return "  ".join(parts)


def _has_evaluated(node: NodeProgress, round_: int) -> bool:
    return any(after >= round_ for after, _ in node.evaluations)


_MOVING = (RoundClosed, Evaluated, Finished, Failed, Died, Interrupted)
"""Events after which the swarm's line may be due."""


class JsonView(_Lines):
    """Every event of every node as a JSON line, with the node's name in it."""

    def __init__(self, stream: IO[str]) -> None:
        super().__init__(stream, lambda count: to_line({**left_out(count).to_record(), "node": ""}))

    def event(self, name: str, event: Event) -> None:
        """Print the event."""
        self._say(to_line({**event.to_record(), "node": name}))


def choose(
    nodes: Sequence[NodeProgress],
    *,
    json: bool,
    byzantine: frozenset[str] = frozenset(),
    console: Console | None = None,
) -> View:
    """Return the view that fits stdout."""
    console = console or Console()
    if json:
        return JsonView(sys.stdout)
    if console.is_terminal and not console.is_dumb_terminal:
        return LiveView(console, nodes, byzantine=byzantine)
    return PlainView(sys.stdout, nodes)


class NoteTaker:
    """Makes notes of events. An event of the whole swarm gives one note: a warning with `about` (see the events' table
    in docs/operations.md) by the first node that has it, and its end by the last one."""

    def __init__(self) -> None:
        self._warned: dict[str, set[str]] = {}
        self._genesis: tuple[str, str] | None = None
        """The first node, and the digest of the model that it begins with."""

    def note(self, name: str, event: Event) -> str | None:
        """The line for an event of node `name`; None where there is nothing to say, or nothing new."""
        if isinstance(event, LearnerStarted):
            return self._initial_model(name, event.genesis)
        if not isinstance(event, WarningEvent) or not event.about:
            return note(name, event)
        nodes = self._warned.setdefault(event.about, set())
        others = nodes - {name}
        if event.recovered:
            nodes.discard(name)
        else:
            nodes.add(name)
        return None if others else note(name, event)

    def _initial_model(self, name: str, genesis: str) -> str | None:
        """What is to be said of a node that begins with another model than the first one: the two refuse each other."""
        if genesis and self._genesis is None:
            self._genesis = (name, genesis)
        if not genesis or self._genesis is None or self._genesis[1] == genesis:
            return None
        return (
            f"{name}: its initial model is another one than {self._genesis[0]}'s, so that they refuse each other; "
            "build_model() must come out the same in every process (no clock, process id, or order of a set)"
        )


def note(name: str, event: Event) -> str | None:
    """The line for an event that a person should know of; None for the ordinary course."""
    match event:
        case Died(why=why, tail=tail):
            last = f" ({tail[-1].strip()})" if tail and "killed by" in why else ""
            return f"{name}: ended early, {why}{last}; the others go on"
        case WarningEvent(message=message):
            return f"{name}: {message}"
        case Banned(peer=peer):
            words = " ".join(word for word in (event.reason, event.detail) if word)
            return f"{name}: banned {text.peer(peer)}{f': {words}' if words else ''}"
        case Equivocation(peer=peer):
            return f"{name}: {text.peer(peer)} signed two different updates in one place"
        case CheckpointSkipped():
            return f"{name}: skipped checkpoint {event.path}: {event.why}"
        case _:
            return None
