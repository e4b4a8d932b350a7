"""Work on many chunks, by as many threads as torch may use: NumPy lets go of the interpreter's lock while it computes.

The caller works too, so that a call made from within the pool, or while the pool is busy, still comes to an end. Each
chunk is written to a place of its own: the result does not depend on who does which. After `torch.set_num_threads(1)`
nothing leaves the calling thread.
"""

import itertools
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Generic, TypeVar

import numpy as np
import torch

T = TypeVar("T")

MAX_THREADS = 8
"""Codecs move memory: a few cores take all the bandwidth there is, and each more contends for the interpreter."""

_pool = ThreadPoolExecutor(MAX_THREADS - 1, thread_name_prefix="codec")  # starts no thread before it is needed


def _after_fork() -> None:
    global _pool  # a forked child has none of its parent's threads
    _pool = ThreadPoolExecutor(MAX_THREADS - 1, thread_name_prefix="codec")


os.register_at_fork(after_in_child=_after_fork)


def for_each(work: Callable[[T], None], items: Sequence[T]) -> None:
    """`work(item)` for every item. Raises what the first in order of those that fail raises.

    Floating-point warnings are off within: a codec looks at what came out (infinite, NaN) instead.
    """
    threads = min(torch.get_num_threads(), MAX_THREADS, len(items))
    if threads <= 1:
        with np.errstate(all="ignore"):
            for item in items:
                work(item)
        return
    share = _Share(work, items)
    helpers = [_pool.submit(share.run) for _ in range(threads - 1)]
    try:
        share.run()
    finally:
        share.stopped = True
        wait([helper for helper in helpers if not helper.cancel()])
        error = share.end()
    if error is not None:
        try:
            raise error
        finally:
            del error  # its traceback holds this frame: in a circle, the vector at hand would outlive the refusal


class _Share(Generic[T]):
    """Items handed out in order, one at a time, to any thread that asks: a slow thread delays one item only."""

    def __init__(self, work: Callable[[T], None], items: Sequence[T]) -> None:
        self.stopped = False
        self._work: Callable[[T], None] | None = work
        self._items = items
        self._next = itertools.count()
        self._failed: dict[int, Exception] = {}

    def run(self) -> None:
        """Work until nothing is left, or something failed."""
        assert self._work is not None
        with np.errstate(all="ignore"):
            while not self.stopped and (index := next(self._next)) < len(self._items):
                try:
                    self._work(self._items[index])
                except Exception as error:  # the caller's to raise; all items before this one are done or under way
                    self._failed[index] = error
                    self.stopped = True

    def end(self) -> Exception | None:
        """Return the first failure in order. Lets go of the work: a cancelled helper stays in the pool's queue for a
        while."""
        first = self._failed[min(self._failed)] if self._failed else None
        self._failed.clear()
        self._work = None
        return first
