"""Work in threads that nobody waits for any more: it goes on after its caller was cancelled, for nothing can stop a
thread. One that is inside a library when Python ends would abort the process, so a program that has one leaves at
once."""

import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final, TypeVar

T = TypeVar("T")

_RUNNING: Final[set[object]] = set()
_STUCK: Final = threading.Event()


async def in_thread(work: Callable[[], T]) -> T:
    """Return what `work` does, in a thread that is left behind where this is cancelled. Whatever `work` raises."""
    import trio  # the command line imports this module for `leave_with_them` alone

    mark = object()

    def run() -> T:
        try:
            return work()
        finally:
            _RUNNING.discard(mark)

    # Who is cancelled by now has no thread, and from here on nothing cancels before there is one: a limiter of its own
    # lets it begin at once.
    await trio.lowlevel.checkpoint_if_cancelled()
    _RUNNING.add(mark)
    return await trio.to_thread.run_sync(run, abandon_on_cancel=True, limiter=trio.CapacityLimiter(1))


def note_stuck_printing() -> None:
    """Note a thread that prints for a reader who does not read on: to print, or to flush stdout, is to wait for it."""
    _STUCK.set()


def printing_is_stuck() -> bool:
    """Return whether there is such a thread."""
    return _STUCK.is_set()


def leave_with_them(code: int) -> None:
    """End this process at once, where some of that work is not over."""
    if not _RUNNING and not printing_is_stuck():
        return
    for stream in () if printing_is_stuck() else (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)
