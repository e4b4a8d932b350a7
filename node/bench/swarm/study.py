"""A set of runs: those that a file has already, and those still to be made, each written down once it is there."""

import json
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from node.bench.base import Row
from node.bench.swarm.jobs import run_all
from node.bench.swarm.results import Results
from node.bench.swarm.run_spec import Document, Kind, RunSpec, baseline
from node.system.errors import UsageError

Say = Callable[[int, int, str], None]
"""Called with each finished run: how many are done, of how many, and what came of it."""


@dataclass(kw_only=True)
class Study:
    """Runs of one benchmark."""

    benchmark: str
    recipes: Sequence[RunSpec]
    out: Path | None = None
    jobs: int = 1
    say: Say = lambda done, total, line: None
    refused: dict[str, str] = field(default_factory=dict)
    """Combinations that cannot be, with why; `rows` adds those that are found out later."""

    def rows(self) -> Iterator[Row]:
        """Return the runs' rows: first those found in the file. UsageError when not one of the combinations can be."""
        results = Results(self.out, self.benchmark)
        open_recipes: list[RunSpec] = []
        told = 0
        for recipe in distinct(self.recipes):
            found = results.find(recipe.document())
            if found is None:
                open_recipes.append(recipe)
            else:
                told += 1
                yield found
        if told:
            self.say(0, len(open_recipes), f"{told} runs were there already in {self.out}")
        for done, (recipe, outcome) in enumerate(run_all(open_recipes, self.jobs), start=1):
            if isinstance(outcome, ValueError):
                self._refuse(recipe, outcome)
                continue
            told += 1
            self.say(done, len(open_recipes), _described(outcome))
            yield results.add(outcome)
        if not told and self.refused:
            raise UsageError(next(iter(self.refused.values())), "no combination that was asked for can be run")

    def _refuse(self, recipe: RunSpec, error: ValueError) -> None:
        config = recipe.config
        what = [config.sync.strategy, config.sync.compressor, config.sync.aggregator, config.attack.name]
        self.refused.setdefault(" ".join(what), str(error))


def distinct(recipes: Iterable[RunSpec]) -> list[RunSpec]:
    """Return each run once, in order."""
    return list({json.dumps(recipe.document(), sort_keys=True): recipe for recipe in recipes}.values())


def with_baselines(recipes: Sequence[RunSpec]) -> list[RunSpec]:
    """Return the runs, after one node alone and all as one with the same training."""
    kinds: tuple[Kind, ...] = ("alone", "synchronous")
    return [*distinct(baseline(recipe, kind) for recipe in recipes for kind in kinds), *recipes]


def groups(rows: Iterable[Row]) -> list[list[Row]]:
    """Group rows that differ in nothing but the seed."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        recipe = recipe_of(row)
        train = {key: value for key, value in recipe["train"].items() if key != "seed"}
        found.setdefault(json.dumps({**recipe, "train": train}, sort_keys=True), []).append(row)
    return list(found.values())


def varied(rows: Sequence[Row], *, known: Sequence[str]) -> list[str]:
    """Return the settings, as `section.key`, that need a column: runs of one strategy and compressor differ in them.

    Those that only go with the strategy, its own defaults, and `known` ones are left out.
    """
    seen: dict[str, dict[str, set[str]]] = {}
    for row in rows:
        if recipe_of(row)["kind"] == "swarm":
            who = f"{row['strategy']} {row['compressor']}"
            for key, value in flattened(recipe_of(row)).items():
                seen.setdefault(key, {}).setdefault(who, set()).add(json.dumps(value))
    return [key for key, by in seen.items() if key not in known and any(len(each) > 1 for each in by.values())]


def flattened(recipe: Mapping[str, Any]) -> Document:
    """Return sections as dotted keys."""
    flat: Document = {}
    for key, value in recipe.items():
        if isinstance(value, Mapping):
            flat |= {f"{key}.{inner}": each for inner, each in value.items()}
        else:
            flat[key] = value
    return flat


def values(rows: Iterable[Row], key: str) -> list[float]:
    """Return the numbers that the rows have for `key`."""
    return [float(value) for row in rows if isinstance(value := row.get(key), int | float)]


def mean(rows: Sequence[Row], key: str) -> float | None:
    """Return the mean over the rows (seeds); None unless all have a number: one that diverged leaves no mean."""
    found = values(rows, key)
    return statistics.fmean(found) if rows and len(found) == len(rows) else None


def spread(rows: Sequence[Row], key: str) -> float | None:
    """Return the standard deviation over the rows (seeds), of two at the least."""
    found = values(rows, key)
    return statistics.stdev(found) if len(found) == len(rows) > 1 else None


def recipe_of(row: Row) -> Mapping[str, Any]:
    """Return the document of the run that made the row."""
    recipe = row["recipe"]
    assert isinstance(recipe, Mapping)
    return recipe


def _described(row: Row) -> str:
    liars = f" {row['attack']} x{row['byzantine']}" if row["byzantine"] else ""
    loss = "diverged" if row["diverged"] else f"loss {row['eval_loss']:.4f}"
    what = f"{row['strategy']} {row['compressor']} {row['aggregator']} f={row['f']}{liars} seed {row['seed']}"
    return f"{what}: {loss} in {row['wall_s']:.0f} s"
