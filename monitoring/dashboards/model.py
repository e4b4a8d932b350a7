"""What a dashboard is made of, without Grafana's words.

A query is PromQL as one would type it, with no word about variables: `scoped` puts them into every selector. So a panel
can be tried against a Prometheus as it stands here, and no selector forgets one.
"""

import re
from dataclasses import dataclass
from typing import Literal

VARIABLES = ("swarm", "run", "node")
"""The labels that `p2ptrain monitor targets` writes; a series without one (a file written by hand) matches "All"."""

BY_NODE = "{{node}}"

Kind = Literal["timeseries", "stat", "table"]

_SELECTOR = re.compile(r"\b(p2ptrain_\w+|(?:up|ALERTS)(?=\{))(?:\{([^}]*)\})?")


@dataclass(frozen=True)
class Query:
    """PromQL, and the name of its curves (in a table, of its column)."""

    expr: str
    legend: str = BY_NODE


@dataclass(frozen=True, kw_only=True)
class Panel:
    """`help`: what it shows, and what to do about it. `levels`: from which value on which colour holds, in ascending
    order; what is below the first is the colour named `base`. `empty`: what it means that there are no series, where
    that may be; a panel without it always has some."""

    title: str
    help: str
    queries: tuple[Query, ...]
    unit: str = "none"
    kind: Kind = "timeseries"
    base: str = "green"
    levels: tuple[tuple[float, str], ...] = ()
    empty: str = ""
    width: int = 8
    height: int = 8

    @property
    def text(self) -> str:
        """The description that Grafana shows: the help, and what an empty panel means."""
        return f"{self.help} Empty: {self.empty}." if self.empty else self.help


@dataclass(frozen=True, kw_only=True)
class Row:
    """Panels under a title, from left to right."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, kw_only=True)
class Dashboard:
    """`name` is its file and the end of its uid."""

    name: str
    title: str
    help: str
    rows: tuple[Row, ...]

    @property
    def uid(self) -> str:
        """What links name it by."""
        return f"p2ptrain-{self.name}"

    @property
    def panels(self) -> tuple[Panel, ...]:
        """Of all rows."""
        return tuple(panel for row in self.rows for panel in row.panels)


def scoped(expr: str) -> str:
    """The query for the swarms, runs and nodes that are chosen above the dashboard."""
    return _SELECTOR.sub(_with_variables, expr)


def unscoped(expr: str) -> str:
    """A scoped query as it reads with every variable on "All"."""
    for name in VARIABLES:
        expr = expr.replace(f'"${name}"', '".*"')
    return expr


def _with_variables(match: re.Match[str]) -> str:
    name, own = match.groups()
    # An alert over a whole swarm names no node.
    labels = VARIABLES[:2] if name == "ALERTS" else VARIABLES
    chosen = ",".join([*filter(None, [own]), *(f'{each}=~"${each}"' for each in labels)])
    return f"{name}{{{chosen}}}"
