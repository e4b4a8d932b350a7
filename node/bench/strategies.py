"""`p2ptrain bench strategies`: final loss against bits sent, for every strategy and compressor, over seeds.

The rows to measure against are one node alone, and fully synchronous data parallel: the exact mean gradient at every
step, over a ring. All do the same number of inner steps a node. Bits are those of real payloads, for a parameter and an
inner step: `sent` counts a payload for every neighbour that takes it, `published` once. `sent` is the headline: it is
what leaves a node, and what `fewer` compares.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from node.bench.base import Column, Row, Summary, left_out
from node.bench.swarm.study import Study, flattened, groups, mean, recipe_of, spread, values, varied

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SHOWN = ("train.seed", "sync.strategy", "sync.compressor", "attack.name", "byzantine", "train.rounds")
"""Settings that have columns anyway, or follow from others."""
MARKERS = "osD^vP*X<>phd1+"
"""As many as there are compressors."""
_NAMED = ("black", "gold", "navy", "lime", "coral", "peru", "teal")
COLOURS = (*(f"C{number}" for number in range(10) if number != 7), *_NAMED)
"""Without grey, in which the markers are explained."""
ANNOTATED = 24
"""Points of a picture that may bear names before these hide each other."""


@dataclass(frozen=True, kw_only=True)
class Strategies:
    """Losses of a grid of runs."""

    study: Study
    name: str = "strategies"

    def run(self) -> Iterator[Row]:
        """Measure; yield each row as soon as there is one."""
        return self.study.rows()

    def summaries(self, rows: Sequence[Row]) -> Sequence[Summary]:
        """Return tables of these rows: seeds become mean and standard deviation; the best comes first."""
        if not rows:
            return []
        extra = varied(rows, known=SHOWN)
        lines = sorted(_lines(rows, extra), key=lambda line: (line["loss"] is None, line["loss"]))
        notes = [
            "sent: bits of payload a parameter and an inner step, a copy for each neighbour, without framing; "
            "published: one copy; peak: bits a parameter at once",
            "behind and fewer: loss and sent against synchronous, the exact mean gradient at each step, over a ring; "
            "alone: one node with all the data, and as many steps as each of them",
            *left_out(self.study.refused),
        ]
        title = f"Loss against bits sent, {rows[0]['metric']}"
        return [Summary(title=title, columns=_columns(lines, extra), rows=lines, notes=notes)]

    def draw(self, rows: Sequence[Row], figure: "Figure") -> None:
        """Draw the rows on an empty figure: loss against bits sent, a colour a strategy, a marker a compressor; one
        node is a line."""
        axes = figure.add_subplot()
        each = [group for group in groups(rows) if mean(group, "eval_loss") is not None]
        _scatter(axes, [group for group in each if group[0]["strategy"] != "alone"])
        for group in each:
            if group[0]["strategy"] == "alone":
                loss = mean(group, "eval_loss") or 0.0
                axes.axhline(loss, linestyle="--", color="grey", label="one node alone")
        axes.set_xscale("log")
        axes.set_xlabel("bits sent a parameter and an inner step")
        axes.set_ylabel(f"final loss, {rows[0]['metric']}" if rows else "final loss")
        axes.grid(visible=True, alpha=0.3)
        if each:
            axes.legend(fontsize="small", loc="center left", bbox_to_anchor=(1, 0.5))


def _columns(lines: Sequence[Row], extra: Sequence[str]) -> list[Column]:
    columns = [
        Column(key="strategy", title="strategy"),
        Column(key="compressor", title="compressor"),
        *(Column(key=key, title=key.removeprefix("train.").removeprefix("sync.")) for key in extra),
        Column(key="attack", title="attack"),
        Column(key="loss", title="loss", unit="mean", digits=4),
        Column(key="spread", title="+-", unit="std", digits=4),
        Column(key="behind", title="behind", unit="%", digits=2),
        Column(key="sent", title="sent", unit="bit", digits=3),
        Column(key="published", title="published", unit="bit", digits=3, spare=True),
        Column(key="peak", title="peak", unit="bit", digits=2),
        Column(key="fewer", title="fewer", unit="times", digits=1),
        Column(key="distance", title="distance", unit="L2", digits=2, spare=True),
        Column(key="seeds", title="seeds"),
    ]
    return [column for column in columns if any(line.get(column.key) is not None for line in lines)]


def _lines(rows: Sequence[Row], extra: Sequence[str]) -> list[dict[str, object]]:
    together = [row for row in rows if row["strategy"] == "synchronous"]
    return [_line(group, extra, together) for group in groups(rows)]


def _line(group: Sequence[Row], extra: Sequence[str], together: Sequence[Row]) -> dict[str, object]:
    first, loss, sent = group[0], mean(group, "eval_loss"), mean(group, "sent_bits")
    same = [row for row in together if _steps(row) == _steps(first)]
    reference, dense = mean(same, "eval_loss"), mean(same, "sent_bits")
    settings = flattened(recipe_of(first))
    return {
        **{key: settings.get(key) for key in extra},
        "strategy": first["strategy"],
        "compressor": first["compressor"],
        "attack": f"{first['attack']} x{first['byzantine']}" if first["byzantine"] else None,
        "loss": loss,
        "spread": spread(group, "eval_loss"),
        "behind": 100 * (loss / reference - 1) if loss is not None and reference else None,
        "sent": sent,
        "published": mean(group, "published_bits"),
        "peak": max(values(group, "peak_bits"), default=None),
        "fewer": dense / sent if dense and sent else None,
        "distance": mean(group, "consensus_distance"),
        "seeds": len(group),
    }


def _steps(row: Row) -> object:
    return row["steps"]


def _scatter(axes: "Axes", each: Sequence[Sequence[Row]]) -> None:
    strategies = list(dict.fromkeys(str(group[0]["strategy"]) for group in each))
    compressors = list(dict.fromkeys(str(group[0]["compressor"]) for group in each))
    named: set[str] = set()
    is_crowded = len(each) > ANNOTATED
    for group in each:
        strategy, compressor = str(group[0]["strategy"]), str(group[0]["compressor"])
        bits, loss = mean(group, "sent_bits"), mean(group, "eval_loss")
        if not bits or loss is None:
            continue  # nothing is sent by a swarm of one, and a logarithmic axis has no place for it
        colour = COLOURS[strategies.index(strategy) % len(COLOURS)]
        marker = MARKERS[compressors.index(compressor) % len(MARKERS)]
        label = strategy if strategy not in named else None
        named.add(strategy)
        axes.errorbar(bits, loss, yerr=spread(group, "eval_loss"), color=colour, marker=marker, label=label, capsize=2)
        if not is_crowded and strategy != "synchronous":
            axes.annotate(compressor, (bits, loss), textcoords="offset points", xytext=(4, 4), fontsize="x-small")
    for marker, compressor in zip(itertools.cycle(MARKERS), compressors if is_crowded else (), strict=False):
        axes.plot([], [], color="grey", marker=marker, linestyle="none", label=compressor)
