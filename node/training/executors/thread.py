"""`thread`: the inner loop runs in one worker thread, other work in another. torch releases the interpreter lock in its
kernels, so training and the event loop run side by side."""

import time
from collections.abc import Callable, Generator
from typing import TypeVar

import trio

from node.training.executors.base import SideWork, Spent, not_asked

T = TypeVar("T")


class ThreadExecutor:
    """Executor over trio's worker threads."""

    def __init__(self) -> None:
        self._inner_limit = trio.CapacityLimiter(1)
        # Codecs and aggregations of one node run one at a time: more would only take cores from training.
        self._offload_limit = trio.CapacityLimiter(1)

    async def drive(self, work: Generator[None, None, T]) -> T:
        """Run `work` in the inner thread. A cancellation is raised between two steps, so that nothing changes the
        parameters any more when the last checkpoint is written."""

        def run() -> T:
            while True:
                trio.from_thread.check_cancelled()
                try:
                    next(work)
                except StopIteration as end:
                    result: T = end.value
                    return result

        return await trio.to_thread.run_sync(run, limiter=self._inner_limit)

    async def offload(self, function: Callable[[], T], spent: Spent = not_asked, work: SideWork = SideWork.OTHER) -> T:
        """Run `function` in a worker thread and wait for it, also when cancelled. `spent` gets the thread's own CPU
        time: on a busy machine a thread waits longer, but computes no more. A codec's helper threads work beside it,
        and no longer."""
        took = 0.0

        def note(seconds: float) -> None:
            nonlocal took
            took = seconds

        try:
            return await trio.to_thread.run_sync(self.here, function, note, limiter=self._offload_limit)
        finally:
            spent(took)

    async def evaluate(self, function: Callable[[], T]) -> T:
        """As `offload`: an evaluation computes all the time."""
        return await self.offload(function)

    @staticmethod
    def here(function: Callable[[], T], spent: Spent = not_asked) -> T:
        """Run `function` in the calling thread."""
        began = time.thread_time()
        try:
            return function()
        finally:
            spent(time.thread_time() - began)
