"""A virtual clock that jumps hides a task that never lets time pass. This counts steps, and names the busy."""

from collections import Counter
from collections.abc import Callable
from typing import Final

import trio

MOST_STEPS: Final = 50_000
"""Scheduler steps of one node in one virtual second. The most that was seen is a tenth of it (docs/decisions/0078)."""

NAMED_FROM: Final = 0.9
"""Share of them after which the names of tasks are counted."""

LOOK_STEPS: Final = 2048
"""Steps between two looks at the real clock, for the progress line."""

LOOK_S: Final = 0.2


class StepBudget(trio.abc.Instrument):
    """Calls `busy` with the names of tasks where more steps than `most` are taken in one virtual second, and `look` a
    few times a second of `wall`, the real clock. Neither may change what the tasks do: instruments are outside of the
    scheduling."""

    def __init__(
        self,
        most: int,
        busy: Callable[[str], None],
        *,
        wall: Callable[[], float],
        look: Callable[[], None] | None = None,
    ) -> None:
        self._most = most
        self._named_from = NAMED_FROM * most
        self._busy = busy
        self._look = look
        self._second = -1
        self._steps = 0
        self._names: Counter[str] = Counter()
        self._wall = wall
        self._looked = self._wall()
        self.total = 0
        self.most_seen = 0
        self.by_second: dict[int, int] = {}
        """Steps taken before each virtual second in which there were any."""

    def after_io_wait(self, timeout: float) -> None:
        """Begin another second: the clock stands still while tasks run."""
        second = int(trio.current_time())
        if second != self._second:
            self.most_seen = max(self.most_seen, self._steps)
            self._second, self._steps = second, 0
            self.by_second[second] = self.total
            self._names.clear()

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        """Count a step."""
        self._steps += 1
        self.total += 1
        if self._steps > self._named_from:
            self._note_busy(task)
        if not self.total % LOOK_STEPS and self._look is not None and self._wall() - self._looked > LOOK_S:
            self._looked = self._wall()
            self._look()

    def _note_busy(self, task: trio.lowlevel.Task) -> None:
        self._names[task.name] += 1
        if self._steps == self._most:
            names = ", ".join(f"{name} ({count})" for name, count in self._names.most_common(3))
            self._busy(f"livelock at {self._second} s: {self._most} steps in a virtual second, by {names}")
