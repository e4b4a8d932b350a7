"""What is printed of a run must not end it: standard streams that are closed, or of a narrow encoding.

A start from cron, a container or a script with `2>&-` may leave file descriptors 0, 1 and 2 closed. Python has None for
their streams then, and the next files to be opened get their numbers: what a library writes to standard error would go
into a checkpoint or a socket. And a terminal that is said to be ASCII must show a folder `Märchen` somehow.
"""

import io
import os
import sys
from contextlib import suppress


def usable() -> None:
    """Open what is closed of the standard streams on nothing, for children too, and let what their encoding lacks be
    written as escapes."""
    for number in range(3):
        _open_if_closed(number)
    sys.stdin = sys.stdin or io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)), encoding="utf-8")
    sys.stdout = sys.stdout or _written(1)
    sys.stderr = sys.stderr or _written(2)
    if isinstance(sys.stdout, io.TextIOWrapper):  # standard error escapes by itself
        with suppress(OSError):  # a pipe in the place of the file that it was opened on: it has no position
            sys.stdout.reconfigure(errors="backslashreplace")


def _open_if_closed(number: int) -> None:
    try:
        os.fstat(number)
    except OSError:
        opened = os.open(os.devnull, os.O_RDWR)  # the lowest number that is free, so this one
        os.set_inheritable(opened, True)


def _written(number: int) -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BufferedWriter(io.FileIO(number, "w", closefd=False)), encoding="utf-8")
