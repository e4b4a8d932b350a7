"""Rows of a measurement: a table for people, JSON lines for programs."""

import json
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from node.bench.base import Column, Row, Summary

NOTHING = "-"
"""Stands where a row has no value."""


def to_line(benchmark: str, row: Row) -> str:
    """Format a row as one JSON object, which names its benchmark."""
    return json.dumps({"benchmark": benchmark, **row}, allow_nan=False)


ROOMY = 110
"""Characters from which on there is room for spare columns, and wider gaps."""
WIDE = 160
"""Characters of a line in a file or a pipe, which has no width of its own."""


def show(console: Console, summaries: Sequence[Summary]) -> None:
    """Print the tables, each with its notes below."""
    if not console.is_terminal:
        console.width = max(console.width, WIDE)
    for summary in summaries:
        console.print(Text(summary.title, style="bold"))  # apart: as the table's own it would be wrapped to its width
        console.print(table(summary, wide=console.width >= ROOMY))
        for note in summary.notes:
            console.print(Text(note, style="dim"))
        console.print()


def table(summary: Summary, *, wide: bool = True) -> Table:
    """Format rows as a table. Units stand in the heads; numbers are to the right, with the decimals that their column
    asks for."""
    columns = [column for column in summary.columns if wide or not column.spare]
    shown = Table(box=box.SIMPLE_HEAD, padding=(0, int(wide), 0, 0), pad_edge=False)
    for column in columns:
        numeric = any(_is_number(row.get(column.key)) for row in summary.rows)
        head = Text.assemble(column.title, (f"\n{column.unit}", "dim") if column.unit else "")
        shown.add_column(head, justify="right" if numeric else "left", overflow="fold")
    for row in summary.rows:
        shown.add_row(*(_cell(row.get(column.key), column) for column in columns))
    return shown


def _cell(value: object, column: Column) -> Text:
    if isinstance(value, Text):
        return value
    if value is None:
        return Text(NOTHING)
    if column.digits is not None and isinstance(value, int | float):
        return Text(f"{value:.{column.digits}f}")
    return Text(f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
