"""What a benchmark is: rows as it measures them, a table of them for people, and a picture."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias, runtime_checkable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Row: TypeAlias = Mapping[str, object]
"""One measurement as JSON values, settings and results alike."""


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column of the table on the terminal."""

    key: str
    """The row's key."""
    title: str
    unit: str = ""
    digits: int | None = None
    """Decimals of a number; None: as it stands."""
    spare: bool = False
    """Left out where there is no room for it."""


@dataclass(frozen=True, kw_only=True)
class Summary:
    """A table of a benchmark's rows for a person."""

    title: str
    columns: Sequence[Column]
    rows: Sequence[Row]
    """A key that a row lacks, or None there, is shown as a dash."""
    notes: Sequence[str] = ()
    """Lines below the table: what is meant, what was left out and why."""


@runtime_checkable
class Benchmark(Protocol):
    """A measurement, built with its options. A ValueError of its factory is a user's mistake in these."""

    name: str

    def run(self) -> Iterator[Row]:
        """Measure; yield each row as soon as there is one."""

    def summaries(self, rows: Sequence[Row]) -> Sequence[Summary]:
        """Return one table or more of these rows."""

    def draw(self, rows: Sequence[Row], figure: "Figure") -> None:
        """Draw the rows as a picture, on an empty figure."""


def left_out(refused: Mapping[str, str]) -> list[str]:
    """Return a note for each reason, from what was refused and why; of several for one reason the first is named."""
    by_reason: dict[str, list[str]] = {}
    for what, why in refused.items():
        by_reason.setdefault(why, []).append(what)
    return [
        f"left out: {each[0]}{f' and {len(each) - 1} more' * (len(each) > 1)}: {why}" for why, each in by_reason.items()
    ]


def within(what: str, value: int, least: int, most: int | None = None) -> None:
    """Raise ValueError, for the user, unless `least` <= `value` (and <= `most`, where there is a most)."""
    if value < least or (most is not None and value > most):
        bounds = f"{least} or more" if most is None else f"from {least} to {most}"
        raise ValueError(f"{what} must be {bounds}, not {value}")


def filled(columns: Sequence[Column], rows: Sequence[Row]) -> list[Column]:
    """Return those of the columns in which any row has something."""
    return [column for column in columns if any(row.get(column.key) is not None for row in rows)]
