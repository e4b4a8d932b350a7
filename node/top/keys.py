"""Reads keys as they are pressed, without Enter, and restores the terminal afterwards."""

import os
import select
import sys
import termios
import time
import tty
from types import TracebackType
from typing import Any

MAX_KEYS = 64
"""Most keys taken at once; more are a key held down."""


class Keys:
    """A context manager that reads keys. Where stdin is not a terminal there are none, and `wait` only waits."""

    def __init__(self) -> None:
        self._before: list[Any] | None = None

    def __enter__(self) -> "Keys":
        if sys.stdin.isatty():
            self._before = termios.tcgetattr(sys.stdin)
            tty.setcbreak(sys.stdin)  # Ctrl-C stays a signal
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._before is not None:
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, self._before)

    def wait(self, seconds: float) -> str:
        """Return the keys that are pressed within so many seconds; `q` when the terminal is closed."""
        if self._before is None:
            time.sleep(seconds)
            return ""
        ready, _, _ = select.select([sys.stdin], [], [], seconds)
        # Bypass Python's buffer, which `select` does not see.
        return (os.read(sys.stdin.fileno(), MAX_KEYS).decode("latin-1") or "q") if ready else ""
