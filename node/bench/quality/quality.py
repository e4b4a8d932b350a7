"""`p2ptrain bench quality`: a study of learning rules after a plan, which tunes all alike and reports on other data.

First every method is tuned, with as many trials each, on the data sets to tune on. Then each runs with its best
settings on the others, once for each seed. Differences from synchronous are taken seed by seed. Bits are those of real
payloads, for a parameter and an inner step: `sent` counts a payload for every neighbour that takes it.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from node.bench.base import Column, Row, Summary
from node.bench.quality import parquet
from node.bench.quality.intervals import Estimate, behind, estimate
from node.bench.quality.pareto import is_on_front
from node.bench.quality.quality_plan import Method, QualityPlan, Trial
from node.bench.quality.registration import register
from node.bench.quality.trials import PlannedRun, at_the_edge, best_trials, check_data, report_runs, tuning_runs
from node.bench.swarm.run_spec import Document, reread
from node.bench.swarm.study import Say, Study, mean
from node.events.sent_bits import ring_all_reduce_bits
from node.system.errors import UsageError
from node.system.run_dir import locked

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

RUNS, ROWS = "runs.jsonl", "rows.parquet"
"""Files of --out: predictions and runs as they are made, and in the end all rows with what they are of."""
ON_FRONT = "*"
PANEL_INCHES = (6.5, 5.0)
COLUMNS = (
    Column(key="method", title="method"),
    Column(key="front", title="front"),
    Column(key="loss", title="loss", unit="mean", digits=4),
    Column(key="loss_half", title="+-", unit="95%", digits=4),
    Column(key="behind", title="behind", unit="%", digits=2),
    Column(key="behind_half", title="+-", unit="95%", digits=2),
    Column(key="predicted", title="predicted", unit="%", digits=1),
    Column(key="sent", title="sent", unit="bit", digits=3),
    Column(key="published", title="published", unit="bit", digits=3),
    Column(key="fewer", title="fewer", unit="times", digits=1),
    Column(key="settings", title="best settings"),
    Column(key="seeds", title="seeds", spare=True),
)
NOTES = (
    "sent: bits of payload a parameter and an inner step, a copy for each neighbour; published: one copy; fewer: than "
    "fp32 ring all-reduce at each step",
    "behind: paired with synchronous seed by seed; +-: half of the 95% interval over seeds; front: none has less loss "
    "for as few bits sent",
)

Panel: TypeAlias = tuple[str, str | None]
"""Name of a data set, and size."""


@dataclass(kw_only=True)
class Quality:
    """A study: the runs of a plan, in a folder that has those made already."""

    plan: QualityPlan
    out: Path | None = None
    jobs: int = 1
    say: Say = lambda done, total, line: None
    name: str = "quality"

    def run(self) -> Iterator[Row]:
        """Tune, then report; yield each run's row as soon as there is one. UsageError on settings that cannot be,
        RunError where another study is at work in the folder."""
        with nullcontext() if self.out is None else locked(self.out):
            yield from self._run()

    def _run(self) -> Iterator[Row]:
        check_data(self.plan)
        trials = tuning_runs(self.plan)
        if self.out is not None:
            register(self.plan, trials, self.out / RUNS, self.name)
        rows: list[Row] = []
        for row in self._rows(trials):
            rows.append(row)
            yield row
        chosen = best_trials(self.plan, rows)
        for row in self._rows(report_runs(self.plan, chosen)):
            rows.append(row)
            yield row
        if self.out is not None:
            parquet.write(self.out / ROWS, rows)

    def _rows(self, runs: Sequence[PlannedRun]) -> Iterator[Row]:
        """A row for each run, though methods that are the same run share it."""
        wanted: dict[str, list[PlannedRun]] = {}
        for run in runs:
            wanted.setdefault(_key(run.recipe.document()), []).append(run)
        out = None if self.out is None else self.out / RUNS
        recipes = [run.recipe for run in runs]
        study = Study(benchmark=self.name, recipes=recipes, out=out, jobs=self.jobs, say=self.say)
        for row in study.rows():
            recipe = row["recipe"]
            assert isinstance(recipe, dict)
            for run in wanted[_key(reread(recipe) or recipe)]:
                yield {**run.labels(), **row}
        if study.refused:  # the others would have had more trials, or more seeds
            what, why = next(iter(study.refused.items()))
            raise UsageError(f"{what}: {why}", "mend the plan; finished runs are kept")

    def summaries(self, rows: Sequence[Row]) -> Sequence[Summary]:
        """Return a table for each data set reported on and size; the least loss comes first."""
        return [
            Summary(
                title=f"Loss against bits sent, {_title(panel)}, {found[0]['metric']}",
                columns=[each for each in COLUMNS if any(line.get(each.key) is not None for line in lines)],
                rows=lines,
                notes=[*NOTES, *self._warnings(panel, found, lines)],
            )
            for panel, found in _panels(rows).items()
            if (lines := self._lines(found))
        ]

    def _lines(self, rows: Sequence[Row]) -> list[Document]:
        by_method = {each.name: [row for row in rows if row["method"] == each.name] for each in self.plan.method}
        reference = next(each.name for each in self.plan.method if each.kind == "synchronous")
        lines = [
            self._line(method, by_method[method.name], by_method[reference])
            for method in self.plan.method
            if by_method[method.name]
        ]
        for line in lines:
            line["front"] = ON_FRONT if _is_on_front(line, lines) else None
        return sorted(lines, key=lambda line: (line["loss"] is None, line["loss"]))

    def _line(self, method: Method, rows: Sequence[Row], references: Sequence[Row]) -> Document:
        losses, synchronous = _losses(rows), _losses(references)
        seeds = [seed for seed in losses if seed in synchronous]
        whole = len(losses) == len(rows)  # a mean over the seeds that did not diverge would flatter it
        loss = estimate(list(losses.values())) if whole else None
        apart = behind([losses[seed] for seed in seeds], [synchronous[seed] for seed in seeds]) if whole else None
        sent, nodes = mean(rows, "sent_bits"), self.plan.report.nodes
        return {
            "method": method.name,
            **_told("loss", loss),
            **_told("behind", apart),
            "predicted": 0.0 if method.kind == "synchronous" else method.predicted_behind,
            "sent": sent,
            "published": mean(rows, "published_bits"),
            "fewer": ring_all_reduce_bits(nodes) / sent if sent else None,
            "settings": _settings(rows[0]),
            "seeds": f"{len(losses)}/{len(rows)}" if not whole else str(len(rows)),
        }

    def _warnings(self, panel: Panel, rows: Sequence[Row], lines: Sequence[Document]) -> Iterator[str]:
        tune = self.plan.tune
        sets = ", ".join(each.name for each in self.plan.sets("tune") if each.kind == rows[0]["task"])
        yield f"each method tuned by {tune.runs} runs on {sets}, seed {tune.seed}"
        for method in self.plan.method:
            found = [row for row in rows if row["method"] == method.name]
            if not found:
                yield f"left out: {method.name}: each of its trials diverged"
            elif edges := at_the_edge(self.plan, method.name, _trial(found[0])):
                yield f"{method.name}: {' and '.join(edges)} is the least or the largest tried; the best may lie beyond"
        yield from (
            f"{line['method']} diverged: {line['seeds']} seeds did not" for line in lines if line["loss"] is None
        )
        if len(self.plan.report.seeds) < 2:
            yield "one seed: no interval"

    def draw(self, rows: Sequence[Row], figure: "Figure") -> None:
        """Draw the rows on an empty figure: loss behind synchronous against bits sent, a panel for each table."""
        panels = _panels(rows)
        width, height = PANEL_INCHES
        figure.set_size_inches(width * max(1, len(panels)), height)
        for axes, (panel, found) in zip(
            figure.subplots(1, max(1, len(panels)), squeeze=False)[0], panels.items(), strict=False
        ):
            _scatter(axes, self._lines(found))
            axes.set_title(_title(panel))


def _scatter(axes: "Axes", lines: Sequence[Document]) -> None:
    for line in lines:
        if line["behind"] is None:
            continue
        if not line["sent"]:  # a logarithmic axis has no place for it
            axes.axhline(line["behind"], linestyle="--", color="grey", label=line["method"])
            continue
        colour = "C0" if line["front"] else "C7"
        axes.errorbar(line["sent"], line["behind"], yerr=line["behind_half"], color=colour, marker="o", capsize=2)
        place = (line["sent"], line["behind"])
        axes.annotate(line["method"], place, textcoords="offset points", xytext=(4, 4), fontsize="x-small")
    axes.set_xscale("log")
    axes.set_xlabel("bits sent a parameter and an inner step")
    axes.set_ylabel("loss behind synchronous, %")
    axes.grid(visible=True, alpha=0.3)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize="small")


def _panels(rows: Sequence[Row]) -> dict[Panel, list[Row]]:
    found: dict[Panel, list[Row]] = {}
    for row in rows:
        if row["phase"] == "report":
            size = row["size"]
            found.setdefault((str(row["data"]), None if size is None else str(size)), []).append(row)
    return found


def _title(panel: Panel) -> str:
    return ", ".join(part for part in panel if part)


def _losses(rows: Sequence[Row]) -> dict[object, float]:
    """By seed; those that diverged are left out."""
    return {row["seed"]: loss for row in rows if isinstance(loss := row["eval_loss"], float)}


def _told(key: str, found: Estimate | None) -> Mapping[str, float | None]:
    return {key: found.mean if found else None, f"{key}_half": found.half if found else None}


def _is_on_front(line: Document, lines: Sequence[Document]) -> bool:
    """Whether no other loses less for as few bits sent, or as little for fewer."""
    if line["loss"] is None:
        return False
    every = [(each["sent"], each["loss"]) for each in lines if each["loss"] is not None]
    return is_on_front((line["sent"], line["loss"]), every)


def _settings(row: Row) -> str:
    return ", ".join(f"{key.partition('.')[2]}={value}" for key, value in _trial(row).items())


def _trial(row: Row) -> Trial:
    trial = row["trial"]
    assert isinstance(trial, dict)
    return trial


def _key(document: Mapping[str, object]) -> str:
    return json.dumps(document, sort_keys=True)
