"""Calls functions at their times: one task for all broadcasts of a node that are on their way."""

import heapq
import itertools
from collections.abc import Callable
from typing import Final

import trio

TOGETHER_S: Final = 0.0005
"""What is due so soon after something else is called with it: copies of one broadcast that leave a fast link one behind
the other are one wake-up."""


def hasten(pause: trio.CancelScope | None, time: float) -> None:
    """Let a wait end at `time` where it would last longer. To set a scope's deadline costs more than to compare it."""
    if pause is not None and time < pause.deadline:
        pause.deadline = time


class Courier:
    """Calls what `at` is given, in the order of times, while `run` runs: at most TOGETHER_S early."""

    def __init__(self) -> None:
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._pause: trio.CancelScope | None = None

    def at(self, time: float, call: Callable[[], None]) -> None:
        """Call `call` at a time."""
        heapq.heappush(self._due, (time, next(self._numbers), call))
        hasten(self._pause, time)

    async def run(self) -> None:
        """Call everything when it is due. Until cancelled."""
        while True:
            while self._due and self._due[0][0] <= trio.current_time() + TOGETHER_S:
                heapq.heappop(self._due)[2]()
            with trio.CancelScope(deadline=self._due[0][0] if self._due else float("inf")) as self._pause:
                await trio.sleep_forever()
