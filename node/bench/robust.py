"""`p2ptrain bench robust`: every attack against every aggregator. Who holds, who falls.

An aggregator is built for exactly as many liars as there are. What counts is the honest nodes' own models, not their
average, which may be good while the nodes are torn apart; `averaged` judges it all the same, as much of the literature
does. A cell is held against the clean run under the plain mean: what nodes reach that need not defend themselves.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.text import Text

from node.bench.base import Column, Row, Summary, left_out
from node.bench.swarm.run_spec import NO_ATTACK
from node.bench.swarm.study import Study, flattened, mean, recipe_of, values

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HOLDS, FALLS = 0.03, 0.10
"""Of the reference: accuracy lost (loss gained). Three points are some ten of the 359 held-out digits; ten points are
more than any use could be made of."""
DARKEST = 0.15
"""Lost: half as much again as what counts as fallen."""
WIDTH_INCHES, LINE_INCHES, HEAD_LINES = 11.0, 0.22, 5
"""Of a picture: its width, and the height of a table's lines, some of which its title and the attacks' names take."""
STYLES = {"holds": "green", "hurt": "yellow", "falls": "bold red", "unjudged": ""}
IN_A_TABLE = ("train.seed", "sync.aggregator", "attack.name", "byzantine")
"""Settings that differ within one table."""
IN_A_TITLE = ("task.name", "task.partition", "task.alpha", "nodes", "graph", "degree", "sync.f")


@dataclass(frozen=True)
class Scale:
    """What a cell shows."""

    key: str
    unit: str
    higher_is_better: bool

    @classmethod
    def of(cls, rows: Sequence[Row], *, averaged: bool) -> "Scale":
        """Return accuracy where the task has it, else loss; of the nodes' models, or of their average."""
        whose = "" if averaged else "_nodes_mean"
        if any(row.get("accuracy") is not None for row in rows):
            return cls(f"accuracy{whose}", "accuracy", True)
        return cls(f"eval_loss{whose}", str(rows[0]["metric"]), False)

    def best(self, found: Sequence[float]) -> float | None:
        """Return the best of these."""
        return (max if self.higher_is_better else min)(found, default=None)


@dataclass(frozen=True, kw_only=True)
class Robust:
    """A measurement of a grid of attacks, aggregators, numbers of liars and partitions."""

    study: Study
    averaged: bool = False
    """Judge the honest nodes' average."""
    name: str = "robust"

    def run(self) -> Iterator[Row]:
        """Measure; yield each row as soon as there is one."""
        return self.study.rows()

    def summaries(self, rows: Sequence[Row]) -> Sequence[Summary]:
        """Return tables of these rows: a table for each partition, graph, number of liars, and whatever else was
        varied."""
        found = _tables(rows, self.averaged).items()
        notes = [*([_legend(Scale.of(rows, averaged=self.averaged))] if rows else []), *left_out(self.study.refused)]
        if any(table.reference() is None for _, table in found):
            notes.insert(1, f"without a clean run nothing is judged: add {NO_ATTACK} to --attack")
        return [_summary(title, table, notes) for title, table in found]

    def draw(self, rows: Sequence[Row], figure: "Figure") -> None:
        """Draw the rows on an empty figure: the same tables, coloured by what was lost."""
        tables = _tables(rows, self.averaged)
        sizes = [len(table.aggregators) + HEAD_LINES for table in tables.values()]
        figure.set_size_inches(WIDTH_INCHES, LINE_INCHES * sum(sizes))
        places = figure.add_gridspec(len(tables), 1, height_ratios=sizes)
        for number, (title, table) in enumerate(tables.items()):
            axes = figure.add_subplot(places[number, 0])
            found = [[min(table.lost(name, attack), 1.0) for attack in table.attacks] for name in table.aggregators]
            image = axes.imshow(found, aspect="auto", cmap="RdYlGn_r", vmin=0, vmax=DARKEST, alpha=0.7)
            for line, name in enumerate(table.aggregators):
                for column, attack in enumerate(table.attacks):
                    axes.text(column, line, table.shown(name, attack), ha="center", va="center", fontsize="x-small")
            axes.set_xticks(range(len(table.attacks)), table.attacks, rotation=20, ha="right", fontsize="small")
            axes.set_yticks(range(len(table.aggregators)), table.aggregators, fontsize="small")
            axes.set_title(f"{title} ({table.scale.unit})", fontsize="small")
            figure.colorbar(image, ax=axes, label="lost", extend="max")


class _Grid:
    """The rows of one table, by aggregator and attack; several rows of a cell are seeds."""

    def __init__(self, rows: Sequence[Row], *, averaged: bool) -> None:
        self.scale = Scale.of(rows, averaged=averaged)
        self.aggregators = sorted({str(row["aggregator"]) for row in rows})
        attacks = sorted({str(row["attack"]) for row in rows})
        self.attacks = sorted(attacks, key=lambda name: name != NO_ATTACK)
        self._rows = rows

    def cell(self, aggregator: str, attack: str) -> list[Row]:
        """Return the rows of a cell."""
        return [row for row in self._rows if row["aggregator"] == aggregator and row["attack"] == attack]

    def value(self, aggregator: str, attack: str) -> float | None:
        """Return the mean of a cell; None when it is empty or a run diverged."""
        return mean(self.cell(aggregator, attack), self.scale.key)

    def reference(self) -> float | None:
        """Return the clean run under the plain mean; the best clean run where the mean was not asked for."""
        clean = {name: self.value(name, NO_ATTACK) for name in self.aggregators}
        return clean.get("mean") or self.scale.best([value for value in clean.values() if value is not None])

    def lost(self, aggregator: str, attack: str) -> float:
        """Return what a cell has lost against the reference; infinite where a run diverged, NaN where there is none."""
        if not self.cell(aggregator, attack):
            return math.nan
        return _lost(self.value(aggregator, attack), self.reference(), higher_is_better=self.scale.higher_is_better)

    def shown(self, aggregator: str, attack: str) -> str:
        """Return the value of a cell, as a table has it."""
        if not self.cell(aggregator, attack):
            return ""
        value = self.value(aggregator, attack)
        return "-" if value is None else f"{value:.3f}"


def _legend(scale: Scale) -> str:
    """What the colours mean: of accuracies the difference in percentage points, of losses their ratio."""
    unit, what = (" points", "less") if scale.higher_is_better else ("%", "more")
    return (
        f"green: at most {100 * HOLDS:.0f}{unit} {what} than the clean plain mean; red: more than "
        f"{100 * FALLS:.0f}{unit}; -: diverged; *: fewer members than the promise for f needs"
    )


def _lost(value: float | None, reference: float | None, *, higher_is_better: bool) -> float:
    if value is None:
        return math.inf
    if reference is None:
        return math.nan
    return reference - value if higher_is_better else value / reference - 1


def verdict(value: float | None, reference: float | None, *, higher_is_better: bool) -> str:
    """Return `holds`, `hurt` or `falls`. A run that diverged fell; without a reference a value is `unjudged`."""
    lost = _lost(value, reference, higher_is_better=higher_is_better)
    if math.isnan(lost):
        return "unjudged"
    return "holds" if lost <= HOLDS else "falls" if lost > FALLS else "hurt"


def _tables(rows: Sequence[Row], averaged: bool) -> dict[str, _Grid]:
    """By title: all that differs but for what differs within a table."""
    flat = [flattened(recipe_of(row)) for row in rows]
    keys = dict.fromkeys(key for each in flat for key in each if key not in (*IN_A_TABLE, *IN_A_TITLE))
    varied = [
        key for key in keys if len({json.dumps(each.get(key)) for each in flat}) > 1 and not key.startswith("attack.")
    ]
    found: dict[str, list[Row]] = {}
    for row, each in zip(rows, flat, strict=True):
        title = ", ".join([_title(each), *(f"{key} = {each.get(key)}" for key in varied)])
        found.setdefault(title, []).append(row)
    return {title: _Grid(group, averaged=averaged) for title, group in found.items()}


def _title(recipe: Mapping[str, object]) -> str:
    partition = recipe.get("task.partition", "")
    if partition == "dirichlet":
        partition = f"dirichlet {recipe.get('task.alpha', 0.3)}"
    graph = recipe["graph"] if recipe["graph"] != "regular" else f"degree {recipe['degree']}"
    parts = [recipe["task.name"], partition, f"{recipe['nodes']} nodes", graph, f"f = {recipe['sync.f']}"]
    return ", ".join(str(part) for part in parts if part)


def _summary(title: str, table: _Grid, notes: Sequence[str]) -> Summary:
    columns = [
        Column(key="aggregator", title="aggregator"),
        *(Column(key=attack, title=attack, unit=table.scale.unit) for attack in table.attacks),
        Column(key="falls to", title="falls to"),
    ]
    reference = table.reference()
    lines = [_line(name, table, reference) for name in table.aggregators]
    return Summary(title=title, columns=columns, rows=lines, notes=notes)


def _line(name: str, table: _Grid, reference: float | None) -> dict[str, object]:
    line: dict[str, object] = {"aggregator": name}
    fell: list[str] = []
    for attack in table.attacks:
        cell, value = table.cell(name, attack), table.value(name, attack)
        if not cell:
            continue
        judged = verdict(value, reference, higher_is_better=table.scale.higher_is_better)
        fell += [attack] if judged == "falls" else []
        promised = min(values(cell, "robust_share"), default=1.0) >= 1.0
        shown = table.shown(name, attack)
        line[attack] = Text(shown if promised else f"{shown}*", style=STYLES[judged])
    return {**line, "falls to": ", ".join(fell) or (None if reference is None else "nothing")}
