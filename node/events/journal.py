"""A node's journal: it passes events on, and keeps the running totals behind its summary."""

from collections.abc import Callable
from typing import TypeAlias

from node.events.event_types import Event

Emit: TypeAlias = Callable[[Event], object]
"""Records an event (node.events.log.EventLog)."""


class Journal:
    """Passes events on. It keeps the first and the last of each measured value, and the time that training took."""

    def __init__(self, emit: Emit, *, clock: Callable[[], float]) -> None:
        self.emit = emit
        self.clock = clock
        self.first: dict[str, float] = {}
        self.last: dict[str, float] = {}
        self.eval_round: int | None = None
        """After how many rounds the held-out loss in `last` was measured."""
        self.own: dict[str, float] = {}
        """The task's own metrics, measured with that loss."""
        self.earlier_seconds = 0.0
        """Training time of this run's earlier processes."""
        self._lap = 0.0
        self._began: float | None = None
        self._ended: float | None = None

    def measured(self, **values: float) -> None:
        """Remember the latest (and, the first time, the first) value of each name."""
        for name, value in values.items():
            self.first.setdefault(name, value)
            self.last[name] = value

    def training_began(self) -> None:
        """Start the clock of `wall_seconds`."""
        self._began = self.clock()

    @property
    def has_begun(self) -> bool:
        """Return whether training has begun, so that there is something to keep."""
        return self._began is not None

    def lap(self) -> float:
        """Return the seconds since the last call, or since training began: the length of a round."""
        now = self.wall_seconds
        seconds, self._lap = now - self._lap, now
        return seconds

    def training_ended(self) -> None:
        """Stop the clock of `wall_seconds`."""
        self._ended = self.clock()

    @property
    def wall_seconds(self) -> float:
        """Return the seconds of training, from its beginning to its end, in this process and those before it."""
        if self._began is None:
            return self.earlier_seconds
        return self.earlier_seconds + (self.clock() if self._ended is None else self._ended) - self._began
