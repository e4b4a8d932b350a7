"""Predictions before results: each method is written into the file of results before any run of it, and never changed
there."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from node.bench.quality.quality_plan import QualityPlan
from node.bench.quality.trials import PlannedRun
from node.bench.swarm.results import Results, append_line, rows_in
from node.system.errors import UsageError

REGISTERED = "registered"
"""The key of such a line, beside `benchmark`."""


def registered(plan: QualityPlan) -> dict[str, dict[str, Any]]:
    """Return, by method, what is written of it: what it is, what is tried for it, and what is expected."""
    dumped = {each.name: (each, each.model_dump(mode="json", exclude={"tune"})) for each in plan.method}
    return {name: {**told, "grid": dict(plan.grid_of(each))} for name, (each, told) in dumped.items()}


def register(plan: QualityPlan, runs: Sequence[PlannedRun], path: Path, benchmark: str) -> None:
    """Append methods that the file does not have. UsageError where one was registered otherwise, or has run before."""
    found = {
        each[REGISTERED]["name"]: each[REGISTERED]
        for each in rows_in(path)
        if each.get("benchmark") == benchmark and isinstance(each.get(REGISTERED), dict)
    }
    results = Results(path, benchmark)
    new = {name: told for name, told in registered(plan).items() if name not in found}
    for name, told in registered(plan).items():
        if name in found and (differs := _differences(found[name], told)):
            what = f"{path} has {name} with another {' and '.join(differs)}, written there before its runs"
            raise UsageError(what, "give another --out, or another name")
    for run in runs:
        if run.method.name in new and results.find(run.recipe.document()) is not None:
            what = f"{path} has runs of {run.method.name}, and no prediction that was made before them"
            raise UsageError(what, "give another --out")
    for told in new.values():
        append_line(path, json.dumps({"benchmark": benchmark, REGISTERED: told}))


def _differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    return [key for key in new if json.dumps(old.get(key)) != json.dumps(new[key])]
