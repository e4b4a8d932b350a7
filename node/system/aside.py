"""What is printed aside: by a thread of its own, in order. A terminal that is stopped (Ctrl-S, a text that is being
selected), or a pipe whose reader does not read on, holds up that thread and no event loop."""

import queue
import sys
import threading
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from node.system import left_threads
from node.system.safe_io import say

T = TypeVar("T")

MAX_WAITING: Final = 4096
"""Items that wait to be printed: what a node tells in an hour of rounds of a few seconds. Later ones are left out."""

LAST_S: Final = 2.0
"""Seconds for what waits at the end. Chosen."""


class Aside(Generic[T]):
    """Call it to have an item printed. Use it as a context manager: what waits at its end is printed before, for at
    most LAST_S. Once printing has failed (its reader is gone, a full disk) nothing more is printed."""

    def __init__(self, show: Callable[[T], object], missed: Callable[[int], T]) -> None:
        """`show` prints an item; `missed` makes one that says how many were left out."""
        self._show = show
        self._missed = missed
        self._waiting: queue.Queue[T | None] = queue.Queue(MAX_WAITING)
        self._left_out = 0
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="printing", daemon=True)

    def __call__(self, item: T) -> None:
        """Have the item printed, unless too many wait."""
        try:
            self._waiting.put_nowait(item)
        except queue.Full:
            with self._lock:
                self._left_out += 1

    def __enter__(self) -> "Aside[T]":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._waiting.put(None, timeout=LAST_S)
            self._thread.join(LAST_S)
        except queue.Full:
            pass
        finally:  # after a second Ctrl-C, too
            if self._thread.is_alive():
                left_threads.note_stuck_printing()

    def _run(self) -> None:
        try:
            while (item := self._waiting.get()) is not None:
                self._show(item)
                if missed := self._taken():
                    self._show(self._missed(missed))
        except Exception as error:
            if not isinstance(error, OSError):  # such as a letter that the terminal's coding has not
                say(sys.stderr, f"warning: nothing more is printed ({type(error).__name__}); events.jsonl has it all\n")
            while self._waiting.get() is not None:
                continue

    def _taken(self) -> int:
        if self._waiting.qsize() > MAX_WAITING // 2:  # said once it is over
            return 0
        with self._lock:
            missed, self._left_out = self._left_out, 0
        return missed
