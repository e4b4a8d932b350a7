"""From a plan to runs: trials on the data to tune on, the best settings of each method, and the runs reported with
them."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from node.bench.base import Row
from node.bench.quality.quality_plan import DataSet, Method, QualityPlan, Trial
from node.bench.swarm.run_spec import SWARM, Grid, RunSpec, Shape, baseline
from node.bench.swarm.study import distinct
from node.config.toml_source import Raw
from node.system.errors import UsageError
from p2ptrain import tasks

Phase: TypeAlias = Literal["tune", "report"]
Chosen: TypeAlias = Mapping[tuple[str, str, str | None], Trial]
"""The best trial by method, task and size; none where all diverged."""


@dataclass(frozen=True, kw_only=True)
class PlannedRun:
    """A run, and what it is for. Two methods may share one."""

    phase: Phase
    data: DataSet
    size: str | None
    method: Method
    trial: Trial
    recipe: RunSpec

    def labels(self) -> dict[str, object]:
        """Return what a row of the run is called by."""
        return {
            "phase": self.phase,
            "data": self.data.name,
            "task": self.data.kind,
            "size": self.size,
            "method": self.method.name,
            "trial": self.trial,
        }


def check_data(plan: QualityPlan) -> None:
    """Open every data set. UsageError where one is missing: those to report on are needed only hours later."""
    for data in plan.data:
        options = {key: value for key, value in data.task.items() if key != "name"}
        try:
            tasks.get(data.kind, **options)
        except ValueError as error:
            raise UsageError(f"data set {data.name}: {error}", "mend the plan, or get the data first") from None


def tuning_runs(plan: QualityPlan) -> list[PlannedRun]:
    """Return every method's trials on the data to tune on. UsageError on settings that cannot be, and on two
    trials that are the same run."""
    runs: list[PlannedRun] = []
    for data in plan.sets("tune"):
        for size in plan.sizes_of(data):
            for method in plan.method:
                trials = [
                    _planned(plan, "tune", data, size, method, trial, plan.tune.seed) for trial in plan.trials(method)
                ]
                if (count := len(distinct(run.recipe for run in trials))) < len(trials):
                    what = f"{method.name}: {len(trials)} trials are {count} different runs"
                    raise UsageError(what, "a grid of its own (tune) with settings that it uses")
                runs += trials
    return runs


def report_runs(plan: QualityPlan, chosen: Chosen) -> list[PlannedRun]:
    """Return the runs to report, seeds outermost. A method whose trials all diverged has none."""
    return [
        _planned(plan, "report", data, size, method, chosen[key], seed)
        for seed in plan.report.seeds
        for data in plan.sets("report")
        for size in plan.sizes_of(data)
        for method in plan.method
        if (key := (method.name, data.kind, size)) in chosen
    ]


def best_trials(plan: QualityPlan, rows: Iterable[Row]) -> Chosen:
    """Return each method's trial of least loss, from the rows of its trials: of several tune sets the least geometric
    mean, which does not depend on what losses are measured in."""
    scores: dict[tuple[str, str, str | None], list[float]] = {}
    numbers = {method.name: list(plan.trials(method)) for method in plan.method}
    for row in rows:
        assert row["phase"] == "tune", "what is reported on chooses nothing"
        method, size, loss = str(row["method"]), row["size"], row["eval_loss"]
        key = (method, str(row["task"]), None if size is None else str(size))
        sums = scores.setdefault(key, [0.0] * len(numbers[method]))
        at = numbers[method].index(_trial_of(row))
        sums[at] += math.log(loss) if isinstance(loss, float) and loss > 0 else math.inf
    best = {key: min(range(len(sums)), key=sums.__getitem__) for key, sums in scores.items() if min(sums) < math.inf}
    return {key: numbers[key[0]][at] for key, at in best.items()}


def at_the_edge(plan: QualityPlan, method: str, trial: Trial) -> list[str]:
    """Return the keys whose chosen number is the least or the largest of three or more: the best may lie beyond."""
    grid = plan.grid_of(next(each for each in plan.method if each.name == method))
    return [key for key, value in trial.items() if len(grid[key]) > 2 and _is_edge(value, grid[key])]


def _is_edge(value: Any, values: Sequence[Any]) -> bool:
    return all(isinstance(each, int | float) for each in values) and value in (min(values), max(values))


def _trial_of(row: Row) -> Trial:
    trial = row["trial"]
    assert isinstance(trial, dict)
    return trial


def _planned(
    plan: QualityPlan, phase: Phase, data: DataSet, size: str | None, method: Method, trial: Trial, seed: int
) -> PlannedRun:
    steps = plan.report.steps if phase == "report" else plan.tune.steps or plan.report.steps
    try:
        recipe = _recipe(plan, data, size, {**method.settings, **trial}, seed, steps)
    except ValueError as error:
        raise UsageError(f"{method.name}: {error}", "mend the plan") from None
    if method.kind != "swarm":
        recipe = baseline(recipe, method.kind)
    elif recipe.config.train.total_steps != steps:
        inner = recipe.config.train.inner_steps
        what = f"{method.name}: {steps} steps are no whole number of rounds of {inner}"
        raise UsageError(what, "all methods take equally many steps: change either")
    return PlannedRun(phase=phase, data=data, size=size, method=method, trial=trial, recipe=recipe)


def _recipe(
    plan: QualityPlan, data: DataSet, size: str | None, settings: Mapping[str, Any], seed: int, steps: int
) -> RunSpec:
    """One thread on the CPU unless the plan says something else, as in the other benches."""
    task = data.task if size is None else {**data.task, "size": size}
    base: Raw = {"task": task, "train": {"threads": 1, "device": "cpu", **plan.train}}
    parts = {tuple(key.split(".", 1)): value for key, value in settings.items()}
    shape = {key: value for (section, key), value in parts.items() if section == SWARM}
    for (section, key), value in parts.items():
        if section != SWARM:
            base.setdefault(section, {})[key] = value
    report = plan.report
    around = Shape(**{"nodes": report.nodes, "degree": report.degree, "graph": report.graph, **shape})
    refused: dict[str, str] = {}
    grid = Grid(base=base, shape=around, axes={("train", "seed"): [seed]}, steps=steps)
    for recipe in grid.recipes(refused):
        return recipe
    raise ValueError(next(iter(refused.values())))
