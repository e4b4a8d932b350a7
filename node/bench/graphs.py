"""`p2ptrain bench graphs`: how near to their mean members come for the copies that they send, by graph. Computed.

Every member begins with a value of its own, drawn independently, and nothing is learned meanwhile. What is left of the
distance to the mean after rounds W_1 ... W_T is then, in the root of the mean square, ||W_T ... W_1 - J/n|| over
||I - J/n|| (Frobenius norms): no values need to be drawn. Orders and matchings do, and their squares are averaged.

Copies are counted as they are sent. In a group of k that exchanges by parts a member sends 2 (k-1)/k; along edges it
sends one to each that takes from it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count, islice
from math import sqrt
from typing import TYPE_CHECKING, Final, Protocol

import torch

from node.bench.base import Column, Row, Summary, within
from node.bench.swarm import graph as neighbourhoods
from p2ptrain import graphs
from p2ptrain.graphs import Graph, Mixing, group_in, mixing_at

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_NODES: Final = 512
"""Matrices of a round take n^2 numbers, and a matching n^2 log n hashes."""
EXACT: Final = 1e-9
"""Distance from which on members count as one: what rounding leaves is below 1e-14."""
ALL_REDUCE: Final = "all-reduce of all"
ALL_TO_ALL: Final = "all to all"


class Rounds(Protocol):
    """Who mixes with whom, of numbered members."""

    def mixing(self, round: int) -> Mixing:
        """Return the mixing matrix of a round."""


@dataclass(frozen=True)
class Drawn:
    """A graph whose members are put in another order in each pass."""

    graph: Graph
    names: Sequence[str]
    seed: bytes

    def mixing(self, round: int) -> Mixing:
        """Return the mixing matrix of a round."""
        return mixing_at(self.graph, self.names, self.seed, round)


@dataclass(frozen=True)
class Static:
    """The same neighbours always, each weighed 1 / (1 + degree)."""

    weights: Mixing

    def mixing(self, round: int) -> Mixing:
        """Return the mixing matrix of a round."""
        return self.weights


@dataclass(frozen=True, kw_only=True)
class MeasuredGraph:
    """A graph as a row of the table."""

    label: str
    group: int
    period: int | None
    """Rounds of a pass, where it has passes."""
    by_parts: bool
    """Whether it exchanges in groups, each member reducing a part."""
    runs: Sequence[Rounds]
    """One for each order that is drawn."""


@dataclass(frozen=True, kw_only=True)
class Graphs:
    """A table of the distances that are left, of every graph with every number of nodes."""

    nodes: Sequence[int]
    groups: Sequence[int] = (2, 4)
    copies: Sequence[float] = (1.0, 2.0, 4.0, 8.0)
    draws: int = 8
    seed: int = 0
    name: str = "graphs"

    def __post_init__(self) -> None:
        for each in self.nodes:
            within("nodes", each, 3, MAX_NODES)
        for each in self.groups:
            within("groups", each, 2, MAX_NODES)
        within("draws", self.draws, 1)

    def run(self) -> Iterator[Row]:
        """Compute; yield a row for each number of nodes and graph."""
        for n in self.nodes:
            for measured in (*self._static(n), *self._drawn(n)):
                yield {"nodes": n, **self._row(measured, n), "draws": self.draws, "seed": self.seed}

    def summaries(self, rows: Sequence[Row]) -> Sequence[Summary]:
        """Return a table for each number of nodes."""
        columns = (
            Column(key="graph", title="graph"),
            Column(key="group", title="group"),
            Column(key="copies_a_round", title="sent a round", unit="copies", digits=2),
            Column(key="exact_copies", title="exact after", unit="copies", digits=2),
            *(Column(key=_key(each), title="left after", unit=f"{each:g} copies", digits=3) for each in self.copies),
        )
        notes = [
            "left: distance to the mean, of 1 at the beginning (root of the mean square), when no further round fits "
            "into so many copies sent by a member on average",
            "exact after: copies that the rounds of a pass take, where all members are then the mean of all",
        ]
        numbers = dict.fromkeys(row["nodes"] for row in rows)
        return [
            Summary(
                title=f"Graphs, {n} nodes",
                columns=columns,
                rows=[row for row in rows if row["nodes"] == n],
                notes=notes if n == list(numbers)[-1] else (),
            )
            for n in numbers
        ]

    def draw(self, rows: Sequence[Row], figure: "Figure") -> None:
        """Draw distance against copies on an empty figure, a part for each number of nodes."""
        numbers = list(dict.fromkeys(row["nodes"] for row in rows))
        for place, n in enumerate(numbers):
            axes = figure.add_subplot(1, len(numbers), place + 1)
            for row in rows:
                curve = row["curve"]
                if row["nodes"] == n and isinstance(curve, list):
                    axes.plot(*zip(*curve, strict=True), marker=".", label=f"{row['graph']} {row['group']}")
            axes.set_title(f"{n} nodes")
            axes.set_yscale("log")
            axes.set_ylim(1e-3, 1.2)
            axes.set_xlabel("copies sent")
        axes.legend(fontsize="x-small")
        figure.axes[0].set_ylabel("distance to the mean")

    def _static(self, n: int) -> Iterator[MeasuredGraph]:
        for label, degree in (("ring", 2), ("regular", 4)):
            if degree < n:
                runs = [Static(_even(neighbourhoods.build(neighbourhoods.REGULAR, n, degree, self.seed)))]
                yield MeasuredGraph(label=label, group=degree + 1, period=None, by_parts=False, runs=runs)
        everybody = Static(_even([frozenset(range(n)) - {own} for own in range(n)]))
        for label in (ALL_TO_ALL, ALL_REDUCE):
            yield MeasuredGraph(label=label, group=n, period=1, by_parts=label == ALL_REDUCE, runs=[everybody])

    def _drawn(self, n: int) -> Iterator[MeasuredGraph]:
        names = list(map(str, range(n)))
        for name in graphs.names():
            for graph in self._sizes(name):
                runs = [Drawn(graph, names, f"{self.seed} {draw}".encode()) for draw in range(self.draws)]
                by_parts, period = graph.form != "edges", graph.period(n)
                yield MeasuredGraph(label=name, group=graph.group, period=period, by_parts=by_parts, runs=runs)

    def _sizes(self, name: str) -> list[Graph]:
        """The graph with every size of group that it can have; where it can have none of these, with its own."""
        found = [graph for size in self.groups if (graph := _of_groups(name, size))]
        return found or [graphs.get(name)]

    def _row(self, measured: MeasuredGraph, n: int) -> dict[str, object]:
        curves = [_curve(rounds, n, max(self.copies), by_parts=measured.by_parts) for rounds in measured.runs]
        curve = [
            (sum(copies for copies, _ in at) / len(at), sqrt(sum(left**2 for _, left in at) / len(at)))
            for at in zip(*curves, strict=False)
        ]
        period = measured.period
        whole = [_passed(rounds, n, period or 0, by_parts=measured.by_parts) for rounds in measured.runs]
        exact = period is not None and max(left for _, left in whole) < EXACT
        a_round = whole[0][0] / period if period else curve[-1][0] / (len(curve) - 1)
        return {
            "graph": measured.label,
            "group": measured.group,
            "period": period,
            "copies_a_round": round(a_round, 4),
            "exact_copies": round(whole[0][0], 4) if exact else None,
            **{_key(budget): _left(curve, budget) for budget in self.copies},
            "curve": [[round(copies, 4), round(left, 6)] for copies, left in curve],
        }


def _of_groups(name: str, size: int) -> Graph | None:
    try:
        return graphs.get(name, group=size)
    except ValueError:  # pairs alone, or none
        return None


def _key(copies: float) -> str:
    return f"left_{copies:g}"


def _left(curve: Sequence[tuple[float, float]], budget: float) -> float:
    """The distance after the last round that the budget pays for."""
    return round([left for copies, left in curve if copies <= budget + EXACT][-1], 6)


def _even(neighbours: Sequence[frozenset[int]]) -> Mixing:
    return {str(own): {str(other): 1 / (1 + len(them)) for other in them} for own, them in enumerate(neighbours)}


def _matrix(mixing: Mixing) -> torch.Tensor:
    """The mixing matrix (n, n), in fp64."""
    n = len(mixing)
    w_nn = torch.zeros(n, n, dtype=torch.float64)
    for name, partners in mixing.items():
        for other, weight in partners.items():
            w_nn[int(name), int(other)] = float(weight)
        w_nn[int(name), int(name)] = 1 - w_nn[int(name)].sum()
    return w_nn


def _sent(mixing: Mixing, *, by_parts: bool) -> float:
    """Copies that a member sends in the round, on average."""
    if by_parts:
        sizes = [len(group_in(mixing, name).members) for name in mixing]
        return sum(2 * (size - 1) / size for size in sizes) / len(sizes)
    return sum(map(len, mixing.values())) / len(mixing)


def _walk(rounds: Rounds, n: int, *, by_parts: bool) -> Iterator[tuple[float, float]]:
    """Copies sent, and distance left, before the first round and after each."""
    mean_nn = torch.full((n, n), 1 / n, dtype=torch.float64)
    product_nn, copies = torch.eye(n, dtype=torch.float64), 0.0
    for number in count():
        yield copies, float(torch.linalg.matrix_norm(product_nn - mean_nn)) / sqrt(n - 1)
        mixing = rounds.mixing(number)
        product_nn, copies = _matrix(mixing) @ product_nn, copies + _sent(mixing, by_parts=by_parts)


def _curve(rounds: Rounds, n: int, most: float, *, by_parts: bool) -> list[tuple[float, float]]:
    """The walk up to the first round beyond `most` copies, and for one round at least."""
    found: list[tuple[float, float]] = []
    for at in _walk(rounds, n, by_parts=by_parts):
        found.append(at)
        if at[0] > most:
            return found
    raise AssertionError("a walk has no end")


def _passed(rounds: Rounds, n: int, period: int, *, by_parts: bool) -> tuple[float, float]:
    """Copies and distance after so many rounds."""
    return next(islice(_walk(rounds, n, by_parts=by_parts), period, None))
