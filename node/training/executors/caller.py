"""`CallerExecutor`: the inner loop runs in a thread that is not ours, a step's worth at a time, whenever it calls.

It is for a training loop of the user's own, which takes the steps itself (node/roles/joined.py): after each of them it
calls `advance`. Codecs and aggregations run in a worker thread, as with `thread`, and evaluations in another one.
"""

import threading
from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import trio

from node.system.errors import RunError
from node.training.executors.thread import ThreadExecutor

T = TypeVar("T")


@dataclass(frozen=True)
class _Work:
    """A generator that the caller is to run, and where its outcome goes."""

    steps: Generator[None, None, Any]
    ended: Callable[[Any, BaseException | None], None]
    """Takes result and error. Called in the caller's thread."""


class CallerExecutor(ThreadExecutor):
    """Executor whose inner thread is the one that calls `advance`, `begin` and `serve`."""

    def __init__(self, goes_on: Callable[[], bool] = lambda: False) -> None:
        """`goes_on`: whether the caller's steps are its own from now on, and counted no more: it then waits for no
        work, and runs what there is after each of them."""
        super().__init__()
        self.goes_on = goes_on
        self._evaluate_limit = trio.CapacityLimiter(1)
        self._change = threading.Condition()
        self._running = threading.Lock()
        """Held while a part of the work runs."""
        self._work: _Work | None = None
        self._closed = False
        self._interrupted: _Work | None = None
        """Work whose caller was interrupted in the midst of it. It cannot go on, and the loop does not know yet."""

    async def drive(self, work: Generator[None, None, T]) -> T:
        """Have the caller run `work` to its end, and return what it returns. A cancellation takes effect between two
        steps."""
        token, done = trio.lowlevel.current_trio_token(), trio.Event()
        outcome: list[tuple[Any, BaseException | None]] = []

        def ended(result: Any, error: BaseException | None) -> None:
            outcome.append((result, error))
            token.run_sync_soon(done.set)

        self._put(_Work(work, ended))
        try:
            await done.wait()
        finally:
            if not outcome:
                with trio.CancelScope(shield=True):  # a part that is running ends first: in a step's time at most
                    await trio.to_thread.run_sync(self._withdraw)
        result, error = outcome[0]
        if error is not None:
            raise error
        return result  # type: ignore[no-any-return]  # what the generator returns, by way of another thread

    async def evaluate(self, function: Callable[[], T]) -> T:
        """Run `function` in a worker thread: it may wait for the end of a step, and no codec waits with it."""
        return await trio.to_thread.run_sync(function, limiter=self._evaluate_limit)

    def begin(self) -> bool:
        """Wait for work and run it up to its first step. Return False where there is no more.

        What interrupts the calling thread, such as Ctrl-C, is raised here and in the two below: the loop is told
        nothing, and is to be stopped."""
        return self._next() and self._run_until_step()

    def advance(self) -> bool:
        """A step was taken: run the work on to its next one. Where this work ends, wait for the next, unless the caller
        `goes_on` without. Return False where there is no more."""
        if not self.goes_on():
            return self._work is not None and self._run_until_step()
        while self._work is not None:
            self._run_part()
        return not self._closed

    def serve(self) -> None:
        """Run all work until `close`: the caller takes no more steps, and work that waits for one finds that out."""
        self.serve_until(lambda: False)

    def serve_until(self, over: Callable[[], bool]) -> bool:
        """Run all work until `over`, which is asked again at each `wake`, and there is none. Return False where there
        will be no more."""
        while self._next(over):
            self._run_part()
        return not self._closed

    def wake(self) -> None:
        """Have the caller ask again whether it is over. Any thread may call it."""
        with self._change:
            self._change.notify_all()

    def forsake(self) -> None:
        """Fail the work in whose midst the caller was interrupted, if any: where it was not cancelled, somebody still
        waits for it."""
        work, self._interrupted = self._interrupted, None
        if work is not None:
            with suppress(trio.RunFinishedError):
                work.ended(None, RunError("it was interrupted", "start it again with the same run folder"))

    def close(self) -> None:
        """Let go of the caller: there is no more work. Any thread may call it."""
        with self._change:
            self._closed = True
            self._change.notify_all()

    def _run_until_step(self) -> bool:
        while not self._run_part():
            if self.goes_on():
                return not self._closed
            if not self._next():
                return False
        return True

    def _run_part(self) -> bool:
        """Run the work on. Return False where it has ended, or was withdrawn."""
        with self._running:
            work = self._work
            if work is None:
                return False
            try:
                next(work.steps)
            except StopIteration as end:
                self._work = None
                work.ended(end.value, None)
                return False
            except Exception as error:  # the node's to handle: it ends with it
                self._work = None
                work.ended(None, error)
                return False
            except BaseException:  # Ctrl-C: the caller's own
                self._work, self._interrupted = None, work
                raise
            return True

    def _next(self, over: Callable[[], bool] = lambda: False) -> bool:
        with self._change:
            while self._work is None and not self._closed and not over():
                self._change.wait()
            return self._work is not None

    def _put(self, work: _Work) -> None:
        with self._change:
            assert self._work is None, "one piece of work at a time"
            self._work = work
            self._change.notify_all()

    def _withdraw(self) -> None:
        with self._running:
            self._work = None
