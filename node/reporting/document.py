"""What a report shows, as plain data: tiles, charts of lines, tables, a timeline. The page's script draws it.

Values are numbers or text. How a number is written is said by its `Format`, so that Python and the script agree.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TypeAlias

Format: TypeAlias = Literal["plain", "count", "bytes", "seconds", "share", "amount", "text", "bits"]

Cell: TypeAlias = float | int | str | None


@dataclass(frozen=True, kw_only=True)
class Tile:
    """A figure that stands first."""

    title: str
    value: Cell
    format: Format = "plain"
    detail: str = ""
    tip: str = ""
    wide: bool = False


@dataclass(frozen=True, kw_only=True)
class Line:
    """A line of a chart: (x, y), or (x, y, lower, upper) with a band."""

    name: str
    points: Sequence[Sequence[float | None]]


@dataclass(frozen=True, kw_only=True)
class LineChart:
    """Lines over a common axis."""

    id: str
    title: str
    unit: str = ""
    x: str = "round"
    x_format: Format = "count"
    y_format: Format = "plain"
    x_log: bool = False
    dots: bool = False
    from_zero: bool = False
    """Whether the y axis begins at zero: small differences then look small."""
    wide: bool = False
    lines: Sequence[Line] = ()


@dataclass(frozen=True, kw_only=True)
class PlanePoint:
    """A point of a scatter, with half of its interval's height."""

    name: str
    x: float
    y: float
    half: float | None
    front: bool


@dataclass(frozen=True, kw_only=True)
class Scatter:
    """Points on a plane whose x is logarithmic; those on the Pareto front are joined."""

    id: str
    title: str
    unit: str = ""
    x: str = ""
    x_format: Format = "bytes"
    points: Sequence[PlanePoint] = ()


@dataclass(frozen=True, kw_only=True)
class DataTable:
    """A table. `formats`: one for each column; the first column names the row."""

    title: str
    columns: Sequence[str]
    formats: Sequence[Format]
    rows: Sequence[Sequence[Cell]]
    note: str = ""
    folded: bool = False


@dataclass(frozen=True, kw_only=True)
class Section:
    """Charts and tables under one title."""

    id: str
    title: str
    note: str = ""
    charts: Sequence[LineChart | Scatter] = ()
    tables: Sequence[DataTable] = ()


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """Who is there and exchanges with whom, frame by frame.

    `members`: (name, run, whether its log is here). A frame: (seconds at its end, [[author, reader, count]],
    [[node, round, loss]]). `moments`: (seconds, member or -1 of one that is not drawn, kind, words).
    """

    members: Sequence[tuple[str, str, bool]]
    frames: Sequence[tuple[float, Sequence[Sequence[int]], Sequence[Sequence[float | int | None]]]]
    moments: Sequence[tuple[float, int, str, str]]
    counts: Mapping[str, int]
    ends: Sequence[tuple[float | None, float | None, str]]
    """Of each member: seconds of its first and last sign of life, and the state that its log ends with."""
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class ReportDocument:
    """A whole report."""

    title: str
    about: str
    state: str
    tiles: Sequence[Tile]
    notes: Sequence[str] = ()
    sections: Sequence[Section] = ()
    timeline: Timeline | None = None
    tables: Sequence[DataTable] = ()
    command: str = ""
    version: str = ""
    made: str = ""
    commands: Sequence[tuple[str, str]] = field(default_factory=tuple)
    """More commands to copy: what one does, and the command."""

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        told = asdict(self)
        for section, kept in zip(told["sections"], self.sections, strict=True):
            for chart, one in zip(section["charts"], kept.charts, strict=True):
                chart["kind"] = "scatter" if isinstance(one, Scatter) else "lines"
        return told
