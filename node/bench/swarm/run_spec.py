"""What one simulated run is, and how lists of choices become many of them.

A recipe is a node's own configuration (task, train, sync, attack) and the swarm's shape. Its document, plain JSON,
stands in the run's row, and tells whether a row found in a file is of this very run.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from node.bench.swarm import graph
from node.config.schema import Config, from_raw
from node.config.toml_source import Raw, parse_set, parse_value
from node.system.errors import UsageError
from p2ptrain.attacks import EdgeAttack
from p2ptrain.sync import ALLREDUCE, SECURE

Kind = Literal["swarm", "alone", "synchronous"]
Document = dict[str, Any]

NO_ATTACK = "none"
SECTIONS = ("task", "train", "sync", "attack")
SWARM = "swarm"
"""Stands for the swarm's shape where a section is named."""
DEGREE = 4
"""Neighbours of a node, where the swarm is larger."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The swarm around the nodes' configuration. ValueError on a swarm that cannot be."""

    nodes: int = 8
    graph: str = "regular"
    degree: int = DEGREE
    byzantine: int = 0
    late_steps: int = 0
    """Inner steps taken between publishing and a round's end, as by a node that does not wait."""

    def __post_init__(self) -> None:
        for key in ("nodes", "degree", "byzantine", "late_steps"):
            if type(value := getattr(self, key)) is not int:
                raise ValueError(f"{key} must be a whole number, not {value!r}")
        if not 1 <= self.nodes <= 64:
            raise ValueError(f"nodes must be between 1 and 64, not {self.nodes}")
        if not 0 <= self.byzantine < self.nodes:
            raise ValueError(f"byzantine must be between 0 and {self.nodes - 1}, not {self.byzantine}")
        graph.build(self.graph, self.nodes, self.degree, 0, self.byzantine)


@dataclass(frozen=True, kw_only=True)
class RunSpec:
    """One run. `alone` is one node on all the data; `synchronous` the exact mean of all nodes' gradients each step."""

    kind: Kind = "swarm"
    config: Config
    shape: Shape = Shape()

    def __post_init__(self) -> None:
        train, late = self.config.train, self.shape.late_steps
        shortest = min(map(train.steps_in, range(train.rounds))) if late else 0
        if not 0 <= late <= shortest:
            raise ValueError(f"late-steps must be between 0 and {shortest}, the steps of the shortest round")
        attack = self.config.attack
        if _in_groups(self.config) and isinstance(attack.find(), EdgeAttack):
            raise ValueError(
                f"{attack.name} tells each victim something else, and a group all-reduce sends all the same"
            )

    def document(self) -> Document:
        """Return what decides the outcome, as JSON: a baseline's has no settings of a learning rule that it does not
        use."""
        dumped = self.config.model_dump(mode="json")
        train = {key: value for key, value in dumped["train"].items() if key not in ("threads", "eval_every")}
        told: Document = {"kind": self.kind, "task": dumped["task"], "train": train}
        if self.kind == "synchronous":
            told["nodes"] = self.shape.nodes
        if self.kind == "swarm":
            told |= {"sync": dumped["sync"], "attack": dumped["attack"], **vars(self.shape)}
        return told

    @property
    def neighbours(self) -> graph.Neighbours:
        """Return the neighbours of each node."""
        shape = self.shape
        return graph.build(shape.graph, shape.nodes, shape.degree, self.config.train.seed, shape.byzantine)


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Every combination of the axes' values, laid over a base configuration. With group all-reduce all nodes know each
    other, whatever the degree is: it costs no bytes, and others could not agree on groups."""

    base: Raw
    shape: Shape
    axes: Mapping[tuple[str, str], Sequence[Any]]
    """Values by (section, key); None leaves the setting as it is in the base."""
    f_follows: bool = True
    """Whether aggregators are built for as many liars as there are, where there are any."""
    steps: int | None = None
    """Inner steps of the whole run: rounds follow from it and each run's inner steps, for equal tokens."""

    def recipes(self, refused: dict[str, str]) -> Iterator[RunSpec]:
        """Return the runs in the order of the axes, the last one fastest. Combinations that cannot be go to `refused`,
        with why."""
        for values in itertools.product(*self.axes.values()):
            chosen = dict(zip(self.axes, values, strict=True))
            try:
                yield self._recipe(chosen)
            except (ValueError, UsageError) as error:
                what = " ".join(str(value) for (_, key), value in chosen.items() if value is not None and key != "seed")
                refused.setdefault(what, error.line() if isinstance(error, UsageError) else str(error))

    def _recipe(self, chosen: Mapping[tuple[str, str], Any]) -> RunSpec:
        raw: Raw = {section: dict(keys) for section, keys in self.base.items()}
        shape = self.shape
        for (section, key), value in chosen.items():
            if section == SWARM:
                shape = replace(shape, **{key: value})
            elif value is not None:
                _set(raw, section, key, value)
        if self.f_follows and shape.byzantine:
            _set(raw, "sync", "f", shape.byzantine)
        if raw.get("attack", {}).get("name", NO_ATTACK) == NO_ATTACK:
            shape = replace(shape, byzantine=0)  # what the others are held against: the same f, and nobody lies
        config = from_raw(raw)
        if _in_groups(config):
            if shape.graph != graph.REGULAR:
                raise ValueError(f"{config.sync.strategy} is for members who all know each other, not a {shape.graph}")
            shape = replace(shape, degree=max(1, shape.nodes - 1))
        if self.steps is not None:
            rounds = max(1, round(self.steps / config.train.inner_steps))
            config = config.model_copy(update={"train": replace(config.train, rounds=rounds)})
        return RunSpec(config=config, shape=shape)


def _in_groups(config: Config) -> bool:
    return config.sync.spec().averager in (ALLREDUCE, SECURE)


def reread(document: Document) -> Document | None:
    """Return a document as this version would write it: settings that it did not know have their defaults. None: no
    such run can be."""
    try:
        config = from_raw({section: document[section] for section in SECTIONS if section in document})
        told = {field.name: document[field.name] for field in fields(Shape) if field.name in document}
        shape = Shape(**{"degree": max(1, told.get("nodes", DEGREE + 1) - 1), **told})
        return RunSpec(kind=document["kind"], config=config, shape=shape).document()
    except (KeyError, TypeError, ValueError, UsageError):
        return None


def baseline(recipe: RunSpec, kind: Kind) -> RunSpec:
    """Return the run of `kind` with the same training. Without rounds: the same for every H with the same number of
    steps."""
    train = recipe.config.train
    steps = replace(
        train,
        rounds=train.total_steps,
        inner_steps=1,
        inner_steps_schedule="constant",
        least_inner_steps=None,
        synchronous_share=None,
        eval_every=train.eval_every * train.inner_steps,
    )
    shape = replace(recipe.shape, byzantine=0, late_steps=0)
    return replace(recipe, kind=kind, config=recipe.config.model_copy(update={"train": steps}), shape=shape)


def parse_axis(text: str) -> tuple[tuple[str, str], list[Any]]:
    """Parse `section.key=a,b,c` as an axis. Raises UsageError when the text has another form."""
    section, key, _ = parse_set(text)
    if section not in (*SECTIONS, SWARM):
        raise UsageError(f"--vary {text!r}: there is no section {section!r}", f"one of {', '.join(SECTIONS)}, {SWARM}")
    values = [parse_value(value.strip()) for value in text.partition("=")[2].split(",") if value.strip()]
    if not values:
        raise UsageError(f"--vary {text!r} names no value", "for example --vary train.learning_rate=1e-3,3e-3")
    return (section, key), values


def _set(raw: Raw, section: str, key: str, value: Any) -> None:
    keys = raw.setdefault(section, {})
    if key == "name" and keys.get("name", value) != value:
        keys.clear()  # options belong to a name
    keys[key] = value
