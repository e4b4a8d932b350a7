"""What a sweep is: settings that all cells share, a grid of settings, and seeds.

    name = "codecs under attack"
    run = "swarm"
    seeds = [0, 1, 2]

    [base]
    task.name = "digits"
    swarm.nodes = 8

    [grid]
    sync.compressor = ["none", "q2"]
    attack.name = ["none", "sign_flip"]

Every combination of the grid's values with every seed is a cell. A cell is named by what decides its outcome, so that a
plan that was changed, or a second one into the same folder, runs what is new and nothing twice.
"""

import hashlib
import itertools
import json
import math
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator

from node.config.config_errors import from_plan
from node.config.toml_source import MAX_FILE_BYTES, no_toml
from node.sweep.base import Cell, Settings
from node.sweep.runners import RUNNERS
from node.system.errors import UsageError
from p2ptrain.tasks.hf.hub import hub_name

MAX_CELLS: Final = 100_000
"""Most cells of a plan: at a second each, a day on one core."""

ID_DIGITS: Final = 16
"""Hex digits of a cell's name: 64 bits, so that among 100,000 cells two share one with a chance of 3e-10."""


class SweepPlan(BaseModel):
    """A plan. ValueError (pydantic's ValidationError) on one that cannot be."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = "sweep"
    run: str = "swarm"
    """What a cell runs: a name of RUNNERS."""
    seeds: list[int] = Field(default=[0], min_length=1)
    base: dict[str, Any] = {}
    grid: dict[str, Any] = {}
    folder: Path = Path()
    """The plan's file is there."""

    @field_validator("run")
    @classmethod
    def _is_known(cls, value: str) -> str:
        if value not in RUNNERS.names():
            raise ValueError(f"there is no {value!r}; there are: {', '.join(RUNNERS.names())}")
        return value

    @field_validator("seeds")
    @classmethod
    def _each_once(cls, value: list[int]) -> list[int]:
        if len(set(value)) < len(value) or min(value) < 0 or max(value) >= 1 << 63:
            raise ValueError("each seed once, from 0 on, and below 2^63")
        return value

    @field_validator("base")
    @classmethod
    def _flat(cls, value: dict[str, Any]) -> dict[str, Any]:
        return flattened_settings(value)

    @field_validator("grid")
    @classmethod
    def _lists(cls, value: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        flat = flattened_settings(value)
        for key, values in flat.items():
            if not isinstance(values, list) or not values:
                raise ValueError(f"{key} must be a list of values, not {values!r}")
            if len({json.dumps(each, default=str) for each in values}) < len(values):
                raise ValueError(f"{key} has a value twice")
        seeds = len(info.data.get("seeds", ())) or 1  # none: they are wrong, which is said of them
        if seeds * math.prod(len(values) for values in flat.values()) > MAX_CELLS:
            raise ValueError(f"more than {MAX_CELLS} cells")
        return flat

    @property
    def digest(self) -> str:
        """Return the plan's name by its content."""
        return _digest(self.model_dump(mode="json", exclude={"folder"}))

    def as_toml(self) -> str:
        """Return the plan as a file that may lie anywhere: paths in it are whole."""
        told = {
            "name": self.name,
            "run": self.run,
            "seeds": self.seeds,
            "base": _settled(self.base, self.folder),
            "grid": {
                key: [_settled({key: each}, self.folder)[key] for each in values] for key, values in self.grid.items()
            },
        }
        return tomli_w.dumps(told)

    @property
    def varied(self) -> list[str]:
        """Return the keys of the grid that have more than one value."""
        return [key for key, values in self.grid.items() if len(values) > 1]

    def cells(self, refused: dict[str, str]) -> Iterator[Cell]:
        """Yield every cell once, seeds outermost, so that an unfinished sweep has something of everything.
        Combinations that cannot be go to `refused`, with why."""
        runner = RUNNERS.get(self.run)
        seen: set[str] = set()
        for seed in self.seeds:
            for values in itertools.product(*self.grid.values()):
                varied = dict(zip(self.grid, values, strict=True))
                settings = _settled({**self.base, **varied}, self.folder)
                try:
                    document = runner.document(settings, seed)
                except (ValueError, UsageError) as error:
                    why = error.line() if isinstance(error, UsageError) else str(error)
                    refused.setdefault(_words(varied), " ".join(why.split()))
                    continue
                name = cell_name(self.run, document)
                if name not in seen:
                    seen.add(name)
                    yield Cell(id=name, runner=self.run, settings=settings, varied=varied, seed=seed)


def _settled(settings: Settings, folder: Path) -> dict[str, Any]:
    """Return the settings with files of the plan's folder by their whole paths."""
    return {
        key: _whole_path(key, value, folder) if isinstance(value, str) else value for key, value in settings.items()
    }


def _whole_path(key: str, value: str, folder: Path) -> str:
    """What is no path stays as it is: a name of Hugging Face's hub, or of a task's own model."""
    if key not in (*PATHS, *NAMES_OR_PATHS):
        return value
    path = (folder / Path(value).expanduser()).absolute()
    may_be_name = key in NAMES_OR_PATHS or (key == "task.data" and hub_name(value) is not None)
    return value if may_be_name and not path.exists() else str(path)


PATHS: Final = ("task.data", "scenario.file", "scenario.calibration")
"""Settings that are files or folders; relative ones are meant from the plan's folder."""

NAMES_OR_PATHS: Final = ("task.model", "task.tokenizer", "task.chat_template")
"""The same where the plan's folder has something of that name; else names."""


def _words(varied: Settings) -> str:
    return " ".join(f"{key}={value}" for key, value in varied.items()) or "the base"


def cell_name(runner: str, document: Mapping[str, Any]) -> str:
    """Return the name of a cell, by what decides its outcome."""
    return _digest({"run": runner, "document": document})


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:ID_DIGITS]


def flattened_settings(sections: Mapping[str, Any]) -> dict[str, Any]:
    """Return `section.key` (or `section.member.option`) with the value, from tables, dotted keys or quoted ones.
    ValueError on a key without a section."""
    flat: dict[str, Any] = {}
    for name, value in sections.items():
        if isinstance(value, Mapping):
            flat |= {f"{name}.{inner}": each for inner, each in _inner(value).items()}
        else:
            flat[name] = value
    if odd := [key for key, value in flat.items() if not _is_plain(value)]:
        raise ValueError(f"{odd[0]} is no number, text, boolean or list of them: {flat[odd[0]]!r}")
    if bare := [key for key in flat if "." not in key]:
        raise ValueError(f"{bare[0]} has no section: write it as section.key, such as train.rounds")
    return flat


def _is_plain(value: Any) -> bool:
    if isinstance(value, list):
        return all(map(_is_plain, value))
    return isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value))


def _inner(table: Mapping[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in table.items():
        if isinstance(value, Mapping):
            flat |= {f"{name}.{option}": each for option, each in value.items()}
        else:
            flat[name] = value
    return flat


def read_sweep(path: Path) -> SweepPlan:
    """Return the plan of a TOML file. UsageError on one that cannot be read, or cannot be."""
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise UsageError(f"{path} is too large for a plan", "give a TOML file")
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
        return SweepPlan.model_validate({"name": path.stem, **raw, "folder": path.absolute().parent})
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", "give a TOML file: docs/how-to/report.md") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise no_toml(path, error) from None
    except ValidationError as error:
        raise from_plan(str(path), error, [key for key in SweepPlan.model_fields if key != "folder"]) from None
