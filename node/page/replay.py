"""The rounds of a run's earlier processes, from its event log: the whole curve, at a bounded cost whatever its size.

A log that is larger than READ_BYTES is read in evenly spaced slices: a curve needs no more points than a screen.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from node.events.event_types import Evaluated, Event, RoundClosed
from node.events.log import event_in, older
from node.events.progress import MAX_OWN
from node.page.columns import Columns, number, own_of
from node.page.history import Row

READ_BYTES = 4 << 20
"""Most bytes read: some 4,000 rounds, a fifth of a second on a thread of its own, when the first page is opened."""

SLICE_BYTES = 1 << 14
"""Bytes of a slice: about ten rounds. Its first and last lines are incomplete, and ignored."""


@dataclass(frozen=True, kw_only=True)
class Earlier:
    """The content of a log: rows of (round, then columns.COLUMNS), of (round, held-out loss), and of (round, value) by
    the name of an own metric."""

    rounds: list[Row] = field(default_factory=list)
    held_out: list[Row] = field(default_factory=list)
    own: dict[str, list[Row]] = field(default_factory=dict)


def earlier_rounds(path: Path, end: int, *, share: int | None = None) -> Earlier:
    """Return the log's content before its byte `end`. Of a longer log `share` bytes are read, by default READ_BYTES.
    Files that are missing, or cannot be read, count as empty."""
    earlier, columns = Earlier(), Columns()
    for event in events_in(path, end, share=READ_BYTES if share is None else share):
        take(earlier, columns, event)
    return earlier


def take(earlier: Earlier, columns: Columns, event: Event) -> None:
    """Add the rows of one event."""
    match event:
        case RoundClosed():
            _add(earlier.rounds, columns.row(event))
        case Evaluated():
            _add(earlier.held_out, (event.round, number(event.eval_loss)))
            for name, value in own_of(event).items():
                if name in earlier.own or len(earlier.own) < MAX_OWN:
                    _add(earlier.own.setdefault(name, []), (event.round, value))


def _add(rows: list[Row], row: Row) -> None:
    """Add a row. A run that went back to a checkpoint trains some rounds again: the later rows count."""
    while rows and (rows[-1][0] or 0) >= (row[0] or 0):
        rows.pop()
    rows.append(row)


def events_in(path: Path, end: int, *, share: int) -> Iterator[Event]:
    """Yield the events of a log before its byte `end`, the older file's first. Of more than `share` bytes, evenly
    spaced parts are read, the first and the last among them."""
    before = _size(older(path))
    share = share // 2 if before else share
    for file, size in ((older(path), before), (path, min(end, _size(path)))):
        for line in _lines(file, size, share):
            event = event_in(line)
            if event is not None:
                yield event


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _lines(path: Path, size: int, share: int) -> Iterator[bytes]:
    if not size:
        return
    try:
        with path.open("rb") as file:
            if size <= share:
                yield from file.read(size).splitlines()
                return
            count = max(2, share // SLICE_BYTES)
            for index in range(count):
                file.seek(index * (size - SLICE_BYTES) // (count - 1))
                yield from file.read(SLICE_BYTES).split(b"\n")[1 if index else 0 : -1]
    except OSError:
        return
