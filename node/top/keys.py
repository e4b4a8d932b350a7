"""Keys as they are pressed, without Enter, and the terminal left as it was."""

import os
import select
import sys
import termios
import time
import tty
from types import TracebackType
from typing import Any

MAX_KEYS = 64
"""Taken at once; more are keys that somebody leans on."""


class Keys:
    """A context manager. Where stdin is no terminal there are no keys, and `wait` only waits."""

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
        """The keys that are pressed within so many seconds; `q` when the terminal has gone."""
        if self._before is None:
            time.sleep(seconds)
            return ""
        ready, _, _ = select.select([sys.stdin], [], [], seconds)
        # Past Python's buffer, of which `select` knows nothing.
        return (os.read(sys.stdin.fileno(), MAX_KEYS).decode("latin-1") or "q") if ready else ""
