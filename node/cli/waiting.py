"""How far a long measurement is, beside its results: a person waits, a program reads the other stream."""

import sys
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


class Waiting:
    """Shows progress, by calls with runs done, runs in all, and the outcome of the last one. On a terminal a bar below
    the lines."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, markup=False)  # brackets in a line are text
        columns = (BarColumn(), MofNCompleteColumn(), TextColumn("runs,"), TimeElapsedColumn(), TextColumn("and"))
        self._bar = Progress(
            *columns, TimeRemainingColumn(), TextColumn("to go"), console=self._console, transient=True
        )
        self._task = self._bar.add_task("", total=None)

    def __enter__(self) -> "Waiting":
        if self._console.is_terminal:
            self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._console.is_terminal:
            self._bar.stop()

    def __call__(self, done: int, total: int, line: str) -> None:
        """Print the line, and move the bar."""
        if self._console.is_terminal:
            self._console.print(line, highlight=False)
            self._bar.update(self._task, completed=done, total=total)
        else:
            print(f"{done}/{total} {line}" if done else line, file=sys.stderr, flush=True)
