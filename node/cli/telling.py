"""What a command is at while nothing comes of it yet: on a terminal a spinner with the time, elsewhere plain lines.

To stderr, so that results can be piped on; a program that reads JSON is told nothing.
"""

import sys
from types import TracebackType
from typing import Final

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

DRAWN_A_SECOND: Final = 2
"""The spinner's frames: a person sees that it goes on, and what is measured meanwhile is not disturbed. Chosen."""


class Telling:
    """Shows what is done now, by calls with a line. A context manager; silent after it, and throughout where
    `quiet`."""

    def __init__(self, first: str, *, quiet: bool = False) -> None:
        """`first`: said at once."""
        self._first, self._quiet = first, quiet
        self._console = Console(stderr=True)
        columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
        self._shown = Progress(*columns, console=self._console, transient=True, refresh_per_second=DRAWN_A_SECOND)
        self._task = self._shown.add_task(first, total=None)

    def __enter__(self) -> "Telling":
        if self._draws:
            self._shown.start()
        else:
            self(self._first)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._draws:
            self._shown.stop()
        self._quiet = True

    def __call__(self, line: str) -> None:
        """Say what is done now."""
        if self._draws:
            self._shown.update(self._task, description=line)
        elif not self._quiet:
            print(line, file=sys.stderr, flush=True)

    @property
    def _draws(self) -> bool:
        return self._console.is_terminal and not self._quiet


def on_a_terminal(line: str, *, quiet: bool = False) -> Telling:
    """Return a callback that shows progress to a person who waits some seconds; a log does not need it."""
    return Telling(line, quiet=quiet or not sys.stderr.isatty())
