"""Reads a scenario, lays `--set` over it, and turns every mistake into a UsageError of one line."""

import inspect
import typing
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import BaseModel, ValidationError

from node.config.config_errors import did_you_mean
from node.config.schema import Config, from_raw
from node.config.toml_source import Raw, merge, parse_value, read_file
from node.simulation.scenario import AttackEvent, NodeGroup, Scenario
from node.system.errors import UsageError

MODES = ("faithful", "large")
"""The modes that this release runs."""


@dataclass(frozen=True)
class LoadedScenario:
    """A scenario, and each group's settings as a node has them."""

    path: Path
    sets: tuple[str, ...]
    scenario: Scenario
    configs: dict[str, Config]
    """By group."""
    calibration: Path | None = None
    """By which nodes without a device compute."""

    def to_toml(self) -> str:
        """Return the scenario as a file that `load_scenario` reads back, overrides included."""
        dumped = self.scenario.model_dump(mode="json", by_alias=True, exclude_defaults=True, exclude_none=True)
        return tomli_w.dumps(dumped)


def load_scenario(
    path: Path, sets: Sequence[str] = (), *, seed: int | None = None, until_s: float | None = None
) -> LoadedScenario:
    """Return the scenario in a file. `sets`: `section.key=value` over it, of any depth; a group is meant by its name
    (`nodes.home.count=3`). Raises UsageError on the first mistake."""
    raw = _read(path)
    for text in sets:
        _set(raw, text)
    over = {"seed": seed, "until_s": None if until_s is None else float(until_s)}
    raw |= {key: value for key, value in over.items() if value is not None}
    try:
        scenario = Scenario.model_validate(raw)
    except ValidationError as error:
        raise _from_validation(path, error) from None
    if scenario.mode not in MODES:
        raise UsageError(f"{path}: mode = {scenario.mode!r} is not there yet", f"there is {', '.join(MODES)}")
    _check_attack(path, scenario)
    return LoadedScenario(
        path, tuple(sets), scenario, {group.name: _config(scenario, group) for group in scenario.nodes}
    )


def _read(path: Path) -> Raw:
    if not path.is_file():
        what = f"{path} is a folder, and no scenario" if path.is_dir() else f"there is no scenario {path}"
        raise UsageError(what, "some are in configs/scenarios/")
    return dict(read_file(path))


def _check_attack(path: Path, scenario: Scenario) -> None:
    """Raise UsageError for an [attack] that an event begins and no node can carry out."""
    if not any(isinstance(event, AttackEvent) for event in scenario.events):
        return
    try:
        found = from_raw({"attack": dict(scenario.attack)}).attack.find()
    except UsageError as error:
        raise UsageError(f"{path}: {error.message}", error.hint) from None
    if found is None:
        raise UsageError(f"{path}: an event begins an attack, and [attack] names none", "add a name to [attack]")


def _config(scenario: Scenario, group: NodeGroup) -> Config:
    """Return the node's settings of a group. Raises UsageError, which names the group."""
    raw: Raw = {section: dict(getattr(scenario, section)) for section in scenario.sections if section != "attack"}
    if group.byzantine:
        raw["attack"] = dict(scenario.attack if group.attack is None else group.attack)
    merge(raw, group.settings)
    try:
        return from_raw(raw)
    except UsageError as error:
        raise UsageError(f"nodes.{group.name}: {error.message}", error.hint) from None


def _set(raw: Raw, text: str) -> None:
    path, equals, value = text.partition("=")
    *above, key = path.strip().split(".")
    if not equals or not all((*above, key)):
        raise UsageError(f"--set {text!r} is not section.key=value", "for example --set train.rounds=20")
    if above[:1] == ["sync"] and len(above) > 1:  # an option of a member is one key, as in node/config
        above, key = ["sync"], ".".join([*above[1:], key])
    inside: Any = raw
    for name in above:
        inside = _inside(inside, name, text)
    if not isinstance(inside, dict):
        raise UsageError(f"--set {text!r}: {'.'.join(above)} has no keys", "give section.key=value")
    inside[key] = parse_value(value.strip())


def _inside(table: Any, name: str, text: str) -> Any:
    if isinstance(table, list):
        named = [each for each in table if isinstance(each, dict) and each.get("name") == name]
        if not named and name.isdecimal() and int(name) < len(table):
            named = [table[int(name)]]
        if not named:
            names = ", ".join(str(each.get("name", number)) for number, each in enumerate(table))
            raise UsageError(f"--set {text!r}: there is no {name!r}", f"there are {names}")
        return named[0]
    return table.setdefault(name, {}) if isinstance(table, dict) else table


def _from_validation(path: Path, error: ValidationError) -> UsageError:
    first = error.errors(include_url=False)[0]
    where = first["loc"]
    if first["type"] == "extra_forbidden":
        *above, key = where
        known = list(_keys_at(above))
        place = _dotted(above)
        what = f"unknown key {place}.{key}" if place else f"unknown section or key {key}"
        return UsageError(f"{path}: {what}{did_you_mean(str(key), known)}", f"there are {', '.join(known)}")
    message = str(first["msg"]).removeprefix("Value error, ")
    place = f"{_dotted(where)}: " if where else ""
    return UsageError(f"{path}: {place}{message[:1].lower()}{message[1:]}", "docs/how-to/rehearse.md has every key")


def _dotted(where: Sequence[int | str]) -> str:
    """A place in the file: `nodes[0].count`. Tags of unions, which pydantic names, are none of it."""
    words = ""
    for number, part in enumerate(where):
        tag = number == 2 and where[0] in ("events", "sessions")
        if isinstance(part, int):
            words += f"[{part}]"
        elif not tag and part != "[key]":
            words += f".{part}" if words else part
    return words


def _keys_at(where: Sequence[int | str]) -> Iterator[str]:
    """The keys of the table at a place."""
    tables: list[type[BaseModel]] = [Scenario]
    for part in where:
        inner = []
        for table in tables:
            field = next((it for name, it in table.model_fields.items() if part in (name, it.alias)), None)
            inner += list(_models_in(field.annotation)) if field is not None else []
        kinds = [each for each in (inner or tables) if part == _kind_of(each)]
        tables = kinds or inner or tables
    for table in tables[:1]:
        yield from (field.alias or name for name, field in table.model_fields.items())


def _kind_of(table: type[BaseModel]) -> str | None:
    kind = table.model_fields.get("kind")
    return None if kind is None else str(typing.get_args(kind.annotation)[0])


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if inspect.isclass(annotation) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in typing.get_args(annotation):
        yield from _models_in(inner)
