"""A report on results of sweeps and of `bench quality`: groups of seeds, their curves, and what they cost.

A group is what differs from the others in settings, not in the seed. Bands and intervals are 95% of the mean over
seeds, by Student's t. Bytes are a node's, the mean over the honest ones.
"""

import itertools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from node.bench.quality.intervals import Estimate, behind, estimate
from node.bench.quality.pareto import is_on_front
from node.events.sent_bits import BITS
from node.reporting.document import (
    Cell,
    DataTable,
    Line,
    LineChart,
    PlanePoint,
    ReportDocument,
    Scatter,
    Section,
    Tile,
)
from node.reporting.loss_curves import LEVELS
from node.reporting.node_story import clipped
from node.reporting.table_rows import ResultRow
from node.system import text
from node.system.text import plural

DRAWN: Final = 8
"""Groups with a curve of their own: as many as there are colours."""

LOSS: Final = "held-out loss"

LISTED_FAILURES: Final = 200

MAX_CURVE: Final = 400
"""Most points of a curve that are drawn."""


@dataclass(frozen=True, kw_only=True)
class ReportedRun:
    """One row, in the words of a report. `curve`: (inner steps, bytes sent by a node, loss)."""

    panel: str
    group: str
    seed: int | None
    loss: float | None
    metric: str
    sent: float | None
    published: float | None
    steps: int | None
    seconds: float | None
    curve: Sequence[tuple[float, float, float]]


@dataclass(frozen=True, kw_only=True)
class Group:
    """Runs that differ in the seed alone."""

    name: str
    runs: Sequence[ReportedRun]
    loss: Estimate | None
    """None where a run diverged: a mean over the others would flatter it."""
    sent: Estimate | None
    published: Estimate | None


def sweep_document(rows: Sequence[ResultRow], notes: Iterable[str]) -> ReportDocument:
    """Return the report. `command`, `version` and `made` are the caller's to add."""
    done = [run for row in rows if _is_reported(row) and (run := _run(row)) is not None]
    broken = [row for row in rows if row.get("status") in ("failed", "refused")]
    panels = {
        name: _groups(list(found))
        for name, found in itertools.groupby(sorted(done, key=lambda each: each.panel), key=lambda each: each.panel)
    }
    names = list(
        dict.fromkeys(clipped(str(row.get("sweep") or (row.get("phase") and "quality") or "results")) for row in rows)
    )
    failed = [row for row in broken if row.get("status") == "failed"]
    return ReportDocument(
        title=" and ".join(names[:3]) + (" and more" if len(names) > 3 else "") if names else "no results",
        about=_about(rows, done, panels),
        state="failed cells" if failed else "done" if done else "empty",
        tiles=_tiles(rows, done, panels, failed),
        notes=[*notes, *_notes(rows, done)],
        sections=[section for name, groups in panels.items() for section in _sections(name, groups)],
        tables=[_failures(broken)] if broken else [],
        commands=[("A failed cell is run again by", clipped_command(failed[0]))] if failed else [],
    )


def clipped_command(row: ResultRow) -> str:
    """Return the row's own command, which is a claim of the file."""
    return clipped(str(row.get("replay") or ""))


def _is_reported(row: ResultRow) -> bool:
    return bool(row.get("status", "done") == "done" and row.get("phase", "report") == "report")


def _run(row: ResultRow) -> ReportedRun | None:
    """Return a row as a run; None where it has no loss and never diverged: then it has no result."""
    quality = "method" in row
    loss = _number(row.get("loss", row.get("eval_loss")))
    if loss is None and "loss" not in row and "eval_loss" not in row:
        return None
    steps, parameters = _number(row.get("steps")), _number(row.get("parameters"))
    whole = steps * parameters / BITS if steps and parameters else None
    sent, published = _number(row.get("sent_bytes")), _number(row.get("published_bytes"))
    if whole is not None and "sent_bytes" not in row:
        sent, published = (_times(row.get(key), whole) for key in ("sent_bits", "published_bits"))
    scale = parameters / BITS if quality and parameters else 1.0
    size = row.get("size")
    varied = row.get("varied")
    data = ", ".join(str(part) for part in (row.get("data"), size) if part)
    return ReportedRun(
        panel=clipped(data if quality else _words(varied, conditions=True)),
        group=clipped(str(row["method"]) if quality else _words(varied, conditions=False) or "all cells"),
        seed=row["seed"] if type(row.get("seed")) is int else None,
        loss=loss,
        metric=clipped(str(row.get("metric") or "")),
        sent=sent,
        published=published,
        steps=None if steps is None else int(steps),
        seconds=_number(row.get("seconds")),
        curve=_curve(row.get("curve"), scale),
    )


CONDITIONS: Final = ("task.", "attack.", "scenario.", "swarm.byzantine", "swarm.nodes")
"""Settings that nobody chooses for their loss: groups are compared under the same ones."""


def _words(varied: Any, *, conditions: bool | None = None) -> str:
    """Name settings as shortly as they are clear. `conditions`: only those of CONDITIONS, or only the others."""
    if not isinstance(varied, Mapping):
        return ""
    kept = {
        str(key): value
        for key, value in varied.items()
        if conditions is None or str(key).startswith(CONDITIONS) == conditions
    }
    return ", ".join(_setting(key, value) for key, value in kept.items())


def _setting(key: str, value: Any) -> str:
    section, _, last = key.rpartition(".")
    if isinstance(value, str) and value != "none":
        return value
    return f"{section if last == 'name' else last}={value}"


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def _times(value: Any, by: float) -> float | None:
    found = _number(value)
    return None if found is None else found * by


def _curve(value: Any, scale: float) -> list[tuple[float, float, float]]:
    if not isinstance(value, list):
        return []
    points = []
    for each in value:
        if isinstance(each, list) and len(each) == 3:
            step, sent, loss = map(_number, each)
            if step is not None and sent is not None and loss is not None:
                points.append((step, sent * scale, loss))
    return points


def _groups(runs: Sequence[ReportedRun]) -> list[Group]:
    found: dict[str, list[ReportedRun]] = {}
    for run in runs:
        found.setdefault(run.group, []).append(run)
    groups = []
    for name, own in found.items():
        losses = [run.loss for run in own if run.loss is not None]
        groups.append(
            Group(
                name=name,
                runs=own,
                loss=estimate(losses) if len(losses) == len(own) else None,
                sent=estimate([run.sent for run in own if run.sent is not None]),
                published=estimate([run.published for run in own if run.published is not None]),
            )
        )
    return sorted(groups, key=lambda group: math.inf if group.loss is None else group.loss.mean)


# -- words


def _about(rows: Sequence[ResultRow], done: Sequence[ReportedRun], panels: Mapping[str, Sequence[Group]]) -> str:
    groups = sum(len(each) for each in panels.values())
    seeds = len({run.seed for run in done})
    return " · ".join([plural(len(rows), "row"), plural(groups, "group"), plural(seeds, "seed")])


def _notes(rows: Sequence[ResultRow], done: Sequence[ReportedRun]) -> list[str]:
    said = []
    for key, noun in (("version", "version"), ("commit", "commit"), ("plan", "plan")):
        found = {str(row[key]) for row in rows if row.get(key)}
        if len(found) > 1:
            said.append(f"rows of {plural(len(found), noun)}: {', '.join(sorted(found)[:5])}")
    strange = sum(_is_reported(row) for row in rows) - len(done)
    if strange:
        said.append(f"{plural(strange, 'row')} {'is' if strange == 1 else 'are'} no result: without a loss")
    tuned = sum(row.get("phase") == "tune" for row in rows)
    if tuned:
        said.append(f"{plural(tuned, 'row')} of trials for tuning {'is' if tuned == 1 else 'are'} not reported on")
    diverged = sum(run.loss is None for run in done)
    if diverged:
        said.append(f"{plural(diverged, 'run')} diverged: their groups have no mean")
    return said


def _tiles(
    rows: Sequence[ResultRow],
    done: Sequence[ReportedRun],
    panels: Mapping[str, Sequence[Group]],
    failed: Sequence[ResultRow],
) -> list[Tile]:
    best = next((groups[0] for groups in panels.values() if groups and groups[0].loss is not None), None)
    refused = sum(row.get("status") == "refused" for row in rows)
    tiles = []
    if best is not None and best.loss is not None:
        sent = None if best.sent is None else best.sent.mean
        published = "" if best.published is None else f"{text.size(best.published.mean)} published"
        tip = "All bytes of updates that a node sent, a copy for each neighbour; published: each update once"
        half = "" if best.loss.half is None else f"± {best.loss.half:.3g}"
        name = best.name if len(panels) == 1 else f"{best.name}, {best.runs[0].panel}"
        tiles += [
            Tile(
                title="Sent by a node, with the least loss",
                value=sent,
                format="bytes",
                detail=published,
                tip=tip,
                wide=True,
            ),
            Tile(
                title="Least held-out loss",
                value=best.loss.mean,
                detail=" ".join(filter(None, [half, best.runs[0].metric, f"by {name}"])),
                wide=True,
            ),
        ]
    return [
        *tiles,
        Tile(title="Runs", value=len(done), format="count"),
        Tile(title="Failed", value=len(failed), format="count", detail=f"{refused} refused" if refused else ""),
    ]


# -- charts


def _sections(panel: str, groups: Sequence[Group]) -> list[Section]:
    key = "".join(char if char.isalnum() else "-" for char in panel) or "all"
    metric = groups[0].runs[0].metric
    drawn = [group for group in groups if any(run.curve for run in group.runs)][:DRAWN]
    left = len([group for group in groups if any(run.curve for run in group.runs)]) - len(drawn)
    curves = {group.name: _banded(group) for group in drawn}
    title, under = (f": {panel}", f", {panel}") if panel else ("", "")
    charts = [
        LineChart(
            id=f"curve-{key}",
            title=f"Held-out loss{under}",
            unit=metric or LOSS,
            x="inner steps",
            x_format="amount",
            lines=[
                Line(name=name, points=[(s, m, lo, hi) for s, _, m, lo, hi in points])
                for name, points in curves.items()
            ],
        ),
        LineChart(
            id=f"bytes-{key}",
            title=f"Held-out loss against bytes sent by a node{under}",
            unit=metric or LOSS,
            x="bytes sent",
            x_format="bytes",
            x_log=True,
            lines=[
                Line(name=name, points=[(b, m, lo, hi) for _, b, m, lo, hi in points if b > 0])
                for name, points in curves.items()
            ],
        ),
    ]
    note = "Bands are 95% intervals of the mean over seeds."
    if left:
        note += f" The {DRAWN} groups of least loss are drawn, {left} more are in the table."
    front = _front(groups)
    return [
        Section(
            id=f"pareto-{key}",
            title=f"Bytes sent against loss{title}",
            charts=[_scatter(key, under, groups, front)],
            tables=[_table(groups, front, metric)],
        ),
        Section(id=f"curves-{key}", title=f"Curves{title}", note=note, charts=charts),
        Section(id=f"times-{key}", title=f"Time to loss{title}", tables=[_times_table(groups, metric)]),
    ]


def _banded(group: Group) -> list[tuple[float, float, float, float | None, float | None]]:
    """Return (steps, bytes sent, mean, lower, upper) at the steps at which every run was measured."""
    by_step: dict[float, list[tuple[float, float]]] = {}
    for run in group.runs:
        for step, sent, loss in run.curve:
            by_step.setdefault(step, []).append((sent, loss))
    steps = [step for step in sorted(by_step) if len(by_step[step]) == len(group.runs)]
    if len(steps) > MAX_CURVE:
        steps = [steps[index * (len(steps) - 1) // (MAX_CURVE - 1)] for index in range(MAX_CURVE)]
    points = []
    for step in steps:
        each = estimate([loss for _, loss in by_step[step]])
        assert each is not None, "a step has a run"
        low, high = (None, None) if each.half is None else (each.mean - each.half, each.mean + each.half)
        points.append((step, statistics.fmean(sent for sent, _ in by_step[step]), each.mean, low, high))
    return points


def _front(groups: Sequence[Group]) -> set[str]:
    placed = {g.name: (g.sent.mean, g.loss.mean) for g in groups if g.sent is not None and g.loss is not None}
    return {name for name, mine in placed.items() if is_on_front(mine, list(placed.values()))}


def _scatter(key: str, under: str, groups: Sequence[Group], front: set[str]) -> Scatter:
    points = [
        PlanePoint(name=g.name, x=g.sent.mean, y=g.loss.mean, half=g.loss.half, front=g.name in front)
        for g in groups
        if g.sent is not None and g.loss is not None
    ]
    return Scatter(
        id=f"front-{key}",
        title=f"Final loss against bytes sent by a node{under}",
        unit=groups[0].runs[0].metric or LOSS,
        x="bytes sent by a node",
        points=points,
    )


def _table(groups: Sequence[Group], front: set[str], metric: str) -> DataTable:
    rows: list[list[Cell]] = []
    for group in groups:
        whole = [run for run in group.runs if run.loss is not None]
        seconds = estimate([run.seconds for run in group.runs if run.seconds is not None])
        apart = _behind(group, groups[0])
        rows.append(
            [
                group.name,
                None if group.loss is None else group.loss.mean,
                None if group.loss is None else group.loss.half,
                None if apart is None else round(apart.mean, 2),
                None if apart is None or apart.half is None else round(apart.half, 2),
                None if group.sent is None else group.sent.mean,
                None if group.published is None else group.published.mean,
                None if seconds is None else seconds.mean,
                f"{len(whole)} of {len(group.runs)}" if len(whole) < len(group.runs) else str(len(group.runs)),
                "front" if group.name in front else None,
            ]
        )
    columns = ["Group", "Loss", "± 95%", "Behind, %", "± 95%", "Sent", "Published", "Time", "Seeds", "Front"]
    formats = ["text", "plain", "plain", "plain", "plain", "bytes", "bytes", "seconds", "text", "text"]
    kept = [n for n in range(len(columns)) if any(row[n] is not None for row in rows)]
    return DataTable(
        title=f"Final held-out loss{f', {metric}' if metric else ''}",
        columns=[columns[n] for n in kept],
        formats=[formats[n] for n in kept],  # type: ignore[misc]  # each is a Format
        rows=[[row[n] for n in kept] for row in rows],
        note="Behind: the first group, seed by seed, so that what a seed does to both is no part of it. Bytes are a "
        "node's. Front: no other has less loss for as few bytes. Seeds: those that did not diverge.",
    )


def _behind(group: Group, best: Group) -> Estimate | None:
    """Return by how many percent its losses are above the best group's, paired by seed; None of the best itself, and
    where runs diverged."""
    if group is best or group.loss is None or best.loss is None:
        return None
    theirs = {run.seed: run.loss for run in best.runs}
    pairs = [(mine, other) for run in group.runs if (mine := run.loss) is not None and (other := theirs.get(run.seed))]
    return behind([mine for mine, _ in pairs], [other for _, other in pairs])


def _times_table(groups: Sequence[Group], metric: str) -> DataTable:
    curves = {group.name: points for group in groups if (points := _banded(group))}
    firsts = [points[0][2] for points in curves.values()]
    bests = [min(point[2] for point in points) for points in curves.values()]
    rows: list[list[Cell]] = []
    if firsts and min(bests) < max(firsts):
        low, high = min(bests), max(firsts)
        for k in range(1, LEVELS + 1):
            level = high - (high - low) * k / (LEVELS + 0.25)
            for name, points in curves.items():
                hit = next((point for point in points if point[2] <= level), None)
                if hit is not None:
                    rows.append([f"{level:.4g}", name, int(hit[0]), hit[1]])
    return DataTable(
        title=f"Inner steps and bytes until the mean held-out loss was as low{f', {metric}' if metric else ''}",
        columns=["Loss", "Group", "Inner steps", "Sent by a node"],
        formats=["text", "text", "count", "bytes"],
        rows=rows,
        note="Groups that never had it are left out. As often as the loss was measured.",
        folded=len(rows) > 2 * LEVELS,
    )


def _failures(rows: Sequence[ResultRow]) -> DataTable:
    told: list[list[Cell]] = [
        [
            _words(row.get("varied")),
            row.get("seed"),
            str(row.get("status")),
            clipped(str(row.get("error"))),
            clipped_command(row),
        ]
        for row in rows[:LISTED_FAILURES]
    ]
    more = len(rows) - len(told)
    return DataTable(
        title="Cells without a result",
        columns=["Cell", "Seed", "State", "Error", "Again"],
        formats=["text", "text", "text", "text", "text"],
        rows=told,
        note=f"{more} more are not listed." if more else "",
    )
