"""The rounds of a run's earlier processes, from its event log: the whole curve, at a bounded cost whatever its size.

Of a log that is larger than READ_BYTES, slices are read, evenly over it: a curve needs no more points than a screen.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

from node.events import Event, from_line, older
from node.page.history import Row

READ_BYTES = 4 << 20
"""Some 4,000 rounds: a fifth of a second, on a thread of its own, when the first page is opened."""

SLICE_BYTES = 1 << 14
"""Ten rounds or so; the first line and the last of a slice are cut, and passed over."""


Evaluation: TypeAlias = tuple[float, float | None, dict[str, float]]
"""The round, the held-out loss, and the task's own metrics."""


def earlier_rounds(path: Path, end: int) -> tuple[list[Row], list[Evaluation]]:
    """What the log said before its byte `end`: rows of (round, train loss, consensus distance), and evaluations. Files
    that are not there, or cannot be read, hold nothing."""
    rounds: list[Row] = []
    held_out: list[Evaluation] = []
    for event in _events(path, end):
        if event["event"] == "round" and isinstance(event.get("round"), int):
            row = (event["round"], _number(event.get("train_loss")), _number(event.get("consensus_distance")))
            _forget_from(rounds, event["round"])
            rounds.append(row)
        elif event["event"] == "evaluated" and isinstance(event.get("round"), int):
            _forget_from(held_out, event["round"])
            held_out.append((event["round"], _number(event.get("eval_loss")), _numbers(event.get("own"))))
    return rounds, held_out


def _forget_from(rows: list[Row] | list[Evaluation], at: int) -> None:
    """A run that went back to a checkpoint trains some rounds again: the later ones count."""
    while rows and (rows[-1][0] or 0) >= at:
        rows.pop()


def _numbers(value: object) -> dict[str, float]:
    if not isinstance(value, dict):
        return {}
    return {str(name): number for name, it in value.items() if (number := _number(it)) is not None}


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _events(path: Path, end: int) -> Iterator[Event]:
    before = _size(older(path))
    share = READ_BYTES // 2 if before else READ_BYTES
    for file, size in ((older(path), before), (path, min(end, _size(path)))):
        for line in _lines(file, size, share):
            event = from_line(line)
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
            count = share // SLICE_BYTES
            for index in range(count):
                file.seek(index * (size - SLICE_BYTES) // (count - 1))
                yield from file.read(SLICE_BYTES).split(b"\n")[1:-1]
    except OSError:
        return
