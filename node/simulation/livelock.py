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

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        """Count a step."""
        second = int(trio.current_time())
        if second != self._second:
            self.most_seen = max(self.most_seen, self._steps)
            self._second, self._steps = second, 0
            self.by_second[second] = self.total
            self._names.clear()
        self._steps += 1
        self.total += 1
        if self._steps > NAMED_FROM * self._most:
            self._names[task.name] += 1
            if self._steps == self._most:
                names = ", ".join(f"{name} ({count})" for name, count in self._names.most_common(3))
                self._busy(f"livelock at {second} s: {self._most} steps in a virtual second, by {names}")
        if self._look is not None and self.total % LOOK_STEPS == 0 and self._wall() - self._looked > LOOK_S:
            self._looked = self._wall()
            self._look()
