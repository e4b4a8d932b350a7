"""`inline`: compute on the event loop itself, each step taking a fixed time by the loop's clock.

It is for tests and simulation: under a virtual clock a whole swarm is deterministic, with nodes of any speeds.
"""

from collections.abc import Callable, Generator
from typing import TypeVar

import trio

from node.training.executors.base import SideWork, Spent, not_asked

T = TypeVar("T")


class InlineExecutor:
    """Executor whose steps last `step_seconds` and whose other work takes no time."""

    def __init__(self, step_seconds: float = 0.05) -> None:
        self._step_seconds = step_seconds

    async def drive(self, work: Generator[None, None, T]) -> T:
        """Run `work`, sleeping one step's time after each of its steps."""
        while True:
            try:
                next(work)
            except StopIteration as end:
                result: T = end.value
                return result
            await trio.sleep(self._step_seconds)

    async def offload(self, function: Callable[[], T], spent: Spent = not_asked, work: SideWork = SideWork.OTHER) -> T:
        """Run `function` here and now, in no time."""
        await trio.lowlevel.checkpoint()
        spent(0.0)
        return function()

    async def evaluate(self, function: Callable[[], T]) -> T:
        """As `offload`."""
        return await self.offload(function)
