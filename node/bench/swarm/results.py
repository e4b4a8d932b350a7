"""Finished runs as JSON lines, appended one by one: what was measured is never measured again.

A line cut short by a crash is passed over, and the next row begins on a line of its own.
"""

import json
import os
from pathlib import Path

from node.bench.swarm.run_spec import Document, reread
from node.system.errors import UsageError


class Results:
    """The rows of one benchmark in a file, or in memory when there is none. UsageError on a file of something else."""

    def __init__(self, path: Path | None, benchmark: str) -> None:
        self._path, self._benchmark = path, benchmark
        rows = [] if path is None else rows_in(path)
        mine = [(row, row.get("recipe")) for row in rows if row.get("benchmark") == benchmark]
        self._found = {_key(now): row for row, told in mine if isinstance(told, dict) and (now := reread(told))}

    def find(self, document: Document) -> Document | None:
        """Return the row of the run that `document` describes. The last one, should there be several."""
        return self._found.get(_key(document))

    def add(self, row: Document) -> Document:
        """Write a finished run's row to the disk, and return it as it stands there."""
        line = json.dumps({"benchmark": self._benchmark, **row}, allow_nan=False)
        if self._path is not None:
            append_line(self._path, line)
        written: Document = json.loads(line)
        self._found[_key(written["recipe"])] = written
        return written


def _key(document: Document) -> str:
    return json.dumps(document, sort_keys=True)


def rows_in(path: Path) -> list[Document]:
    """Return all rows of a file, whatever they are of; none where there is no file. UsageError where it is no file of
    results."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        if not path.absolute().parent.is_dir():
            raise UsageError(f"--out: there is no folder {path.absolute().parent}", "make it first") from None
        return []
    except UnicodeDecodeError:
        raise UsageError(f"--out: {path} is no file of results", "give another name") from None
    rows = [row for line in lines if (row := _parsed(line)) is not None]
    if lines and not rows:
        raise UsageError(f"--out: {path} is no file of results", "give another name")
    return rows


def _parsed(line: str) -> Document | None:
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) else None


def append_line(path: Path, line: str) -> None:
    """Write a line to the disk, after the end of a line cut short."""
    with path.open("a+b") as file:
        file.seek(0, os.SEEK_END)
        if file.tell():
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                file.write(b"\n")
        file.write(line.encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
