"""What a study of quality is: data sets, methods with predictions, an equal tuning budget, and what is reported.

A plan that could fool its author is refused: one that tunes and reports on the same data, gives a method more trials or
more examples than another, or lacks a prediction.
"""

import itertools
import json
import math
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from node.bench.swarm.run_spec import SWARM, Kind
from node.config.config_errors import from_plan
from node.config.toml_source import MAX_FILE_BYTES, Raw, no_toml
from node.system.errors import UsageError
from p2ptrain import tasks
from p2ptrain.options import options_of

SECTIONS = ("train", "sync", SWARM)
"""What a method or a grid may set."""
SHAPE = frozenset({"graph", "degree", "late_steps"})
"""Of SECTIONS' swarm. How many nodes there are is the same for all."""
ALIKE = frozenset({"seed", "rounds", "batch_size", "grad_accumulation", "eval_every", "eval_examples"})
"""Keys of [train] that are the same for all methods: steps, examples a step, and what they are judged by."""
DEALT = frozenset({"partition", "alpha", "size", "context"})
"""Options of tasks that make no other data: how they are dealt to shards, and the model. Sets that differ only in these
hold out the same examples."""


def _flat(sections: Raw) -> dict[str, Any]:
    """Return `section.key`, or `section.member.option`, with the value."""
    found: dict[str, Any] = {}
    for section, keys in sections.items():
        if section not in SECTIONS or not isinstance(keys, dict):
            raise ValueError(f"{section!r} is no section of a method; there are: {', '.join(SECTIONS)}")
        for key, value in keys.items():
            inner = (
                {f"{key}.{option}": each for option, each in value.items()} if isinstance(value, dict) else {key: value}
            )
            found |= {f"{section}.{name}": each for name, each in inner.items()}
    for dotted in found:
        section, _, key = dotted.partition(".")
        if section == "train" and key in ALIKE:
            raise ValueError(f"{dotted} is the same for all methods: set it in [train] or [report]")
        if section == SWARM and key not in SHAPE:
            raise ValueError(f"{dotted} is no setting of a method; there are: {', '.join(sorted(SHAPE))}")
    return found


def _grid(sections: Raw) -> dict[str, Any]:
    grid = _flat(sections)
    for key, values in grid.items():
        if not isinstance(values, list) or not values:
            raise ValueError(f"{key} must be a list of values to try, not {values!r}")
        if len({json.dumps(value) for value in values}) < len(values):
            raise ValueError(f"{key} has a value twice")
    return grid


SearchGrid = Annotated[Raw, AfterValidator(_grid)]
"""Values to try by dotted key; every combination is a trial."""
Trial = dict[str, Any]
"""One combination: values by dotted key."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class DataSet(_Part):
    """A task with its options, to be tuned on or reported on."""

    name: str
    role: Literal["tune", "report"]
    task: Raw
    """As a configuration's [task], without a size."""

    @property
    def kind(self) -> str:
        """Return the task's name. What is tuned on a task holds for that task."""
        return str(self.task.get("name", "byte-lm"))

    def takes_size(self) -> bool:
        """Return whether the task has models of several sizes, by name."""
        option = options_of(tasks.factory_of(self.kind)).get("size")
        return option is not None and str in option.kinds

    def shares_data_with(self, other: "DataSet") -> bool:
        """Return whether the two hold out, or train on, the same examples: the same task and data, however dealt. One
        path may lie in the other."""
        mine, theirs = (
            {key: value for key, value in each.task.items() if key not in (*DEALT, "data", "name")}
            for each in (self, other)
        )
        paths = [Path(str(each.task["data"])).expanduser().resolve() for each in (self, other) if each.task.get("data")]
        if len(paths) == 2:
            return paths[0].is_relative_to(paths[1]) or paths[1].is_relative_to(paths[0])
        return not paths and self.kind == other.kind and mine == theirs


class Method(_Part):
    """A way to train, with what is expected of it. `synchronous`: the exact mean gradient at every step, what all are
    held against; `alone`: one node with all the data."""

    name: str
    source: str
    """Paper, or where in this project."""
    kind: Kind = "swarm"
    predicted_behind: float | None = None
    """Percent of the loss behind synchronous, written down before any run."""
    prediction: str = ""
    train: Raw = {}
    sync: Raw = {}
    swarm: Raw = {}
    tune: SearchGrid | None = None
    """In place of [tune.grid], with as many trials."""

    @model_validator(mode="after")
    def _is_predicted(self) -> Self:
        if self.kind != "synchronous" and self.predicted_behind is None and not self.prediction:
            raise ValueError(f"{self.name} has no prediction: give predicted_behind, in percent, or prediction, a text")
        _ = self.settings  # ValueError on what is no setting of a method
        return self

    @property
    def settings(self) -> dict[str, Any]:
        """Return what the method is, by dotted key. ValueError on what is no setting of a method."""
        return _flat({section: getattr(self, section) for section in SECTIONS})


class Tuning(_Part):
    """How every method is tuned."""

    runs: int = Field(ge=1, le=1000)
    """Trials of each method, on each tune set and size."""
    seed: int = Field(default=0, ge=0)
    steps: int | None = Field(default=None, ge=1)
    """Inner steps of a trial; None: as many as are reported."""
    grid: SearchGrid


class Reporting(_Part):
    """What is run with each method's best settings."""

    seeds: list[int] = Field(min_length=1)
    nodes: int = 8
    degree: int = 4
    graph: str = "regular"
    sizes: list[str] = Field(default=["nano"], min_length=1)
    """Of tasks that have sizes."""
    steps: int = Field(ge=1)


class QualityPlan(_Part):
    """A whole study. ValueError (pydantic's ValidationError) on one that could fool its author."""

    data: list[DataSet]
    method: list[Method]
    tune: Tuning
    report: Reporting
    train: Raw = {}
    """The same for all methods, unless a method sets it."""

    @model_validator(mode="after")
    def _is_fair(self) -> Self:
        every: tuple[list[Any], ...] = ([each.name for each in self.data], [each.name for each in self.method])
        for names in (*every, self.report.seeds):
            if twice := [name for name in names if names.count(name) > 1]:
                raise ValueError(f"{twice[0]!r} stands there twice")
        if sum(each.kind == "synchronous" for each in self.method) != 1:
            raise ValueError("one method must be of kind synchronous: all are held against it")
        self._check_data()
        for method in self.method:
            count = math.prod(len(values) for values in self.grid_of(method).values())
            if count != self.tune.runs:
                raise ValueError(
                    f"{method.name} has {count} trials, and tune.runs says {self.tune.runs} for each method"
                )
        return self

    def _check_data(self) -> None:
        for tuned, reported in itertools.product(self.sets("tune"), self.sets("report")):
            if tuned.shares_data_with(reported):
                raise ValueError(
                    f"{tuned.name} is tuned on and {reported.name} reported on, and they are the same data"
                )
        if not self.sets("report"):
            raise ValueError("no data set has the role report")
        tuned_kinds = {each.kind for each in self.sets("tune")}
        for each in self.sets("report"):
            if each.kind not in tuned_kinds:
                raise ValueError(f"{each.name} is reported on, and no data set of the task {each.kind} is tuned on")

    def sets(self, role: str) -> list[DataSet]:
        """Return the data sets of a role."""
        return [each for each in self.data if each.role == role]

    def sizes_of(self, data: DataSet) -> Sequence[str | None]:
        """Return the sizes of the models that a data set is run with; None for a task that has no sizes."""
        return self.report.sizes if data.takes_size() else [None]

    def grid_of(self, method: Method) -> Mapping[str, list[Any]]:
        """Return what is tried for a method, by dotted key."""
        return self.tune.grid if method.tune is None else method.tune

    def trials(self, method: Method) -> Iterator[Trial]:
        """Yield every combination of the method's grid."""
        grid = self.grid_of(method)
        yield from (dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values()))


def parse_plan(text: str, what: str) -> QualityPlan:
    """Return the plan that a TOML text says. UsageError, which names `what`, on the first mistake."""
    try:
        return QualityPlan.model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise no_toml(what, error) from None
    except ValidationError as error:
        raise from_plan(what, error, QualityPlan.model_fields) from None
    except ValueError as error:  # of a task that does not exist
        raise UsageError(f"{what}: {error}", "mend the plan") from None


def read_plan(path: Path) -> QualityPlan:
    """Return the plan of a file. UsageError on one that cannot be read, or cannot be."""
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise UsageError(f"{path} is too large for a plan", "give a TOML file with --plan")
        return parse_plan(path.read_text(encoding="utf-8"), str(path))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", "give a TOML file with --plan") from None
    except UnicodeDecodeError as error:
        raise no_toml(path, error) from None


def quick_plan() -> QualityPlan:
    """Return the plan of `--quick`: seconds, on digits."""
    return read_plan(Path(__file__).with_name("quick.toml"))
