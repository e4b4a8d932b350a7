"""A curve in bounded memory that covers all rounds: at the limit each two neighbouring points become one, their mean.

So a curve of a million rounds has between half the limit and the limit of points, evenly over the rounds, and a page
that is opened late shows all of it. A reader of a curve keeps a cursor, and gets what changed since.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

MAX_POINTS = 1024
"""A page is at most some 1,000 pixels wide; 1,024 points of twelve numbers are 400 kB in memory,
100 kB on the wire."""

Row = tuple[float | None, ...]
"""The round, and the values measured in it; None where nothing or no finite number was measured."""


class Cursor(NamedTuple):
    """How much of a curve a reader has. The default: nothing."""

    generation: int = -1
    points: int = 0
    added: int = -1


class CurveDelta(NamedTuple):
    """What a reader lacks: `rows` replace everything from index `start` on."""

    start: int
    rows: list[Row]
    cursor: Cursor


class Curve:
    """Measurements over rounds."""

    def __init__(self, limit: int = MAX_POINTS) -> None:
        """Make an empty curve. `limit`: most points kept, an even number."""
        assert limit % 2 == 0, "points are merged in pairs"
        self._limit = limit
        self._rows: list[Row] = []
        self._stride = 1
        """Measurements per point."""
        self._filled = 0
        """Measurements in the newest point."""
        self._generation = 0
        """Rises when points other than the newest change."""
        self._added = 0

    @property
    def rows(self) -> list[Row]:
        """Return every point: its last round, and the means of its measurements."""
        return list(self._rows)

    def add(self, at: float, *values: float | None) -> None:
        """Add a measurement. One at an earlier round than the last is from a node that went back: later points are
        removed."""
        self._forget_from(at)
        row = (at, *map(_finite, values))
        if self._rows and self._filled < self._stride:
            self._rows[-1] = _mean(self._rows[-1], row, self._filled)
            self._filled += 1
        else:
            if len(self._rows) == self._limit:
                self._thin()
            self._rows.append(row)
            self._filled = 1
        self._added += 1

    def put_before(self, rows: Sequence[Row]) -> None:
        """Insert earlier measurements, which were not known when the first came; those at later rounds are ignored."""
        first = self._rows[0][0] if self._rows else math.inf
        assert first is not None, "every point has a round"
        later = self._rows
        self._rows, self._stride, self._filled = [], 1, 0
        self._generation += 1
        for row in (*(row for row in rows if row[0] is not None and row[0] < first), *later):
            assert row[0] is not None, "every point has a round"
            self.add(row[0], *row[1:])

    def since(self, cursor: Cursor) -> CurveDelta | None:
        """Return what a reader at `cursor` lacks; None when nothing."""
        now = Cursor(self._generation, len(self._rows), self._added)
        if now == cursor:
            return None
        start = max(0, cursor.points - 1) if cursor.generation == self._generation else 0  # the newest may have grown
        return CurveDelta(start, self._rows[start:], now)

    def _forget_from(self, at: float) -> None:
        kept = len(self._rows)
        while kept and (last := self._rows[kept - 1][0]) is not None and last >= at:
            kept -= 1
        if kept < len(self._rows):
            del self._rows[kept:]
            self._filled = self._stride
            self._generation += 1

    def _thin(self) -> None:
        pairs = zip(self._rows[::2], self._rows[1::2], strict=True)
        self._rows = [_mean(before, after, 1) for before, after in pairs]
        self._stride *= 2
        self._generation += 1


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _mean(row: Row, newer: Row, weight: int) -> Row:
    """Return the mean of `weight` measurements in `row` and one more, at the newer one's round."""
    return (newer[0], *(_mean_value(a, b, weight) for a, b in zip(row[1:], newer[1:], strict=True)))


def _mean_value(a: float | None, b: float | None, weight: int) -> float | None:
    if a is None or b is None:
        return b if a is None else a
    return (a * weight + b) / (weight + 1)
