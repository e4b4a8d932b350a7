"""The losses of a report: over rounds, time and bytes, and when nodes first had how low a one.

Bands are 95% intervals of the mean over nodes, by Student's t.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from node.bench.quality.intervals import estimate
from node.page.history import Row
from node.reporting.document import Cell, DataTable, Line, LineChart, Section
from node.reporting.gathered import mean_of, metric_of, span_of
from node.reporting.node_story import NodeStory

BUCKETS: Final = 256
"""Rounds are gathered into so many for a band, as many as a screen tells apart."""

LINES: Final = 8
"""Nodes with a line of their own: as many as there are colours."""

LEVELS: Final = 5
"""Losses to which the time is told, evenly from the first almost to the best."""

COST_NOTE: Final = "All bytes to peers: every copy of an update, whole models, announcements, framing and handshakes."

Estimates = list[tuple[float, float, float | None, float | None]]
"""(x, mean, lower, upper)."""


@dataclass(frozen=True)
class Bucket:
    """The means over nodes of what they measured within some rounds."""

    round: int
    seconds: float | None
    sent: float | None
    loss: float
    half: float | None


def loss_sections(runs: Mapping[Path, Sequence[NodeStory]]) -> list[Section]:
    """Return the curves over rounds and time, over bytes, and the times to losses. `runs`: nodes by their run."""
    several = len(runs) > 1
    held: dict[str, list[Bucket]] = {}
    trained: dict[str, list[Bucket]] = {}
    for run, stories in list(runs.items())[:LINES]:
        start, _ = span_of(stories)
        name = run.name or "/"
        held[name] = buckets([story.held_out.rows for story in stories], 3, start)
        trained[name] = buckets([story.rounds.rows for story in stories], 3, start)
    metric = metric_of(story for own in runs.values() for story in own)
    bands = {"held-out": held, "training": trained}
    nodes = [story for own in runs.values() for story in own]
    own_lines = [_own_line(story) for story in nodes] if len(nodes) <= LINES and not several else []
    loss = [
        LineChart(id="loss", title="Loss", unit=metric, wide=True, lines=_lines(bands, "round", several=several)),
        *(
            [LineChart(id="own-loss", title="Held-out loss of each node", unit=metric, dots=True, lines=own_lines)]
            if any(line.points for line in own_lines) and len(nodes) > 1
            else []
        ),
        LineChart(
            id="loss-seconds",
            title="Loss over time",
            unit=metric,
            x="seconds",
            x_format="seconds",
            lines=_lines(bands, "seconds", several=several),
        ),
    ]
    cost = LineChart(
        id="loss-bytes",
        title="Loss against bytes sent by a node",
        unit=metric,
        x="bytes sent",
        wide=True,
        x_format="bytes",
        lines=_lines(bands, "sent", several=several),
    )
    band = "Bands are 95% intervals of the mean over nodes." if len(nodes) > 1 else ""
    return [
        Section(id="losses", title="Loss", note=band, charts=loss),
        Section(id="costs", title="Bytes sent against loss", note=COST_NOTE, charts=[cost]),
        Section(id="times", title="Time to loss", note="", tables=[_time_table(runs, metric)]),
    ]


def buckets(curves: Sequence[Sequence[Row]], loss: int, start: float) -> list[Bucket]:
    """Return the means over nodes, round by round or BUCKETS of them. `loss`: the row's index of the loss."""
    last = max((row[0] or 0 for curve in curves for row in curve), default=0)
    width = max(1, math.ceil(last / BUCKETS))
    found: dict[int, dict[int, list[Row]]] = {}
    for node, curve in enumerate(curves):
        for row in curve:
            if row[loss] is not None:
                found.setdefault(math.ceil((row[0] or 0) / width) * width, {}).setdefault(node, []).append(row)
    told = []
    for at in sorted(found):
        rows = list(found[at].values())
        each = estimate([statistics.fmean(row[loss] or 0.0 for row in own) for own in rows])
        assert each is not None, "a bucket has a row"
        ts, sent = (mean_of(mean_of(row[index] for row in own) for own in rows) for index in (1, 2))
        told.append(Bucket(at, None if ts is None else ts - start, sent, each.mean, each.half))
    return told


def _banded(told: Sequence[Bucket], x: str) -> Estimates:
    """Return the points over `round`, `seconds` or `sent`; what falls back (a node with fewer bytes came) is left
    out."""
    points: Estimates = []
    for each in told:
        at = getattr(each, x)
        if at is None or (points and at <= points[-1][0]):
            continue
        low, high = (None, None) if each.half is None else (each.loss - each.half, each.loss + each.half)
        points.append((at, each.loss, low, high))
    return points


def _lines(bands: Mapping[str, Mapping[str, Sequence[Bucket]]], x: str, *, several: bool) -> list[Line]:
    lines = []
    for kind, by_run in bands.items():
        for run, told in by_run.items():
            points = _banded(told, x)
            if points and (not several or kind == "held-out"):
                lines.append(Line(name=run if several else kind, points=points))
    return lines


def _own_line(story: NodeStory) -> Line:
    return Line(name=story.name, points=[(row[0], row[3]) for row in story.held_out.rows if row[3] is not None])


def _time_table(runs: Mapping[Path, Sequence[NodeStory]], metric: str) -> DataTable:
    rows: list[list[Cell]] = []
    for run, stories in runs.items():
        curves = {story.number: _judged(story) for story in stories}
        starts = span_of(stories)[0]
        for level in levels(buckets(list(curves.values()), 3, starts)):
            reached = [hit for curve in curves.values() if (hit := first_at(curve, level)) is not None]
            seconds = estimate([hit[1] - starts for hit in reached if hit[1] is not None])
            sent = estimate([hit[2] for hit in reached if hit[2] is not None])
            rounds = estimate([hit[0] for hit in reached if hit[0] is not None])
            rows.append(
                [
                    f"{level:.4g}" if len(runs) == 1 else f"{run.name}: {level:.4g}",
                    None if seconds is None else seconds.mean,
                    None if seconds is None else seconds.half,
                    None if sent is None else sent.mean,
                    None if rounds is None else rounds.mean,
                    f"{len(reached)} of {len(curves)}",
                ]
            )
    return DataTable(
        title=f"When nodes first had so low a held-out loss{f', {metric}' if metric else ''}",
        columns=["Loss", "Time", "± 95%", "Sent by a node", "Rounds", "Nodes"],
        formats=["text", "seconds", "seconds", "bytes", "plain", "text"],
        rows=rows,
        note="Means over the nodes that had it; where a node evaluated nothing, its training loss counts.",
    )


def _judged(story: NodeStory) -> list[Row]:
    held = [row for row in story.held_out.rows if row[3] is not None]
    return held if len(held) > 1 else story.rounds.rows


def levels(told: Sequence[Bucket]) -> list[float]:
    """Return LEVELS losses, evenly from the first mean to just above the best one: half of the nodes miss the best."""
    if len(told) < 2:
        return []
    first, best = told[0].loss, min(each.loss for each in told)
    return [first - (first - best) * (k + 1) / (LEVELS + 0.25) for k in range(LEVELS)] if best < first else []


def first_at(curve: Sequence[Row], level: float) -> Row | None:
    """Return the first row with a loss (index 3) of `level` or less."""
    return next((row for row in curve if row[3] is not None and row[3] <= level), None)
