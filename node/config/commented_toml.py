"""All settings as a TOML file to be read by people: each key with what it means, those that are not set as comments.

What a key means is the text that stands under it in its class, so that nothing is said twice.
"""

import ast
import inspect
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from itertools import pairwise
from typing import Any, Final

import tomli_w

from node.config.schema import Config
from node.config.toml_source import inline_table
from p2ptrain import tasks
from p2ptrain.attacks import ATTACKS
from p2ptrain.registry import UnknownMemberError
from p2ptrain.sync.sync_config import OPTIONS, OWN_KEYS, all_options
from p2ptrain.tasks import TaskError

WIDTH: Final = 100
"""Columns of a comment. Chosen: it fits beside a file's tree in an editor."""

_UNITS: Final = {"_s": "seconds", "_bytes": "bytes", "_bytes_per_s": "bytes a second", "_steps": "steps"}
"""By a key's end, what its number counts."""

_NOT_SET: Final = "(not set)"


def to_commented_toml(config: Config) -> str:
    """Write every key that may be set, as a file that `load` reads back to the same configuration."""
    dumped = config.model_dump(mode="json", exclude_none=True)
    return "\n".join(line for section in Config.model_fields for line in _section(config, section, dumped[section]))


def _section(config: Config, name: str, dumped: Mapping[str, Any]) -> Iterator[str]:
    part = getattr(config, name)
    first, _, _ = (inspect.getdoc(type(part)) or "").partition(". ")
    yield from (*_comment(f"{first.rstrip('.')}."), f"[{name}]")
    if is_dataclass(part):
        about = field_texts(type(part))
        for each in fields(part):
            if (name, each.name) != ("sync", OPTIONS):
                yield from _key(each.name, about.get(each.name, ""), dumped)
        if name == "sync":
            yield from _member_options(dumped)
    else:
        yield from _free(part.name, name, dumped)
    yield ""


def _member_options(dumped: Mapping[str, Any]) -> Iterator[str]:
    """The options of all members that [sync] can name: those that are set, and the others as comments."""
    known = all_options()
    for key in (*known, *(key for key in dumped if key not in known and key not in OWN_KEYS)):
        members, option = known.get(key.rpartition(".")[2], ((), None))
        of = key.rpartition(".")[0] or " and ".join(members)
        yield from _key(key, f"{option.about if option else ''} Only for {of}.".strip(), dumped)


def _key(key: str, about: str, dumped: Mapping[str, Any]) -> Iterator[str]:
    unit = next((unit for end, unit in sorted(_UNITS.items(), reverse=True) if key.endswith(end)), "")
    yield ""
    yield from _comment(f"{about} [{unit}]" if unit and unit not in about.lower() else about)
    yield _pair(key, dumped[key]) if key in dumped else f"# {key} = {_NOT_SET}"


def _free(member: str, section: str, dumped: Mapping[str, Any]) -> Iterator[str]:
    """The section of a member and its own options: those that its factory takes."""
    yield from (_pair(key, value) for key, value in dumped.items())
    factory = _factory(member, section)
    if factory is None:
        return
    options = [each for each in inspect.signature(factory).parameters.values() if each.name not in dumped]
    if not options:
        return
    yield ""
    yield from _comment(f"What {member} takes besides. {inspect.getdoc(factory) or ''}")
    for option in options:
        given = option.default if option.default is not inspect.Parameter.empty else None
        yield f"# {option.name} = {_NOT_SET}" if given is None else f"# {_pair(option.name, given)}"


def _factory(member: str, section: str) -> Any:
    """What builds the member with its options; None where there is nothing to be asked."""
    try:
        if section == "task":
            return tasks.factory_of(member)
        return None if member == "none" else ATTACKS.factory(member)
    except (TaskError, UnknownMemberError):  # a task of somebody else's machine, an attack that is made of two
        return None


def _pair(key: str, value: object) -> str:
    if isinstance(value, Mapping):
        return f"{key} = {inline_table(value)}"
    try:
        return tomli_w.dumps({key: value}).rstrip("\n")
    except TypeError:  # a default that TOML has no word for
        return f"{key} = {_NOT_SET}"


def _comment(words: str) -> list[str]:
    plain = " ".join(words.split()).replace("None: ", "Not set: ")
    return [f"# {line}" for line in textwrap.wrap(plain, WIDTH - 2, break_long_words=False, break_on_hyphens=False)]


def field_texts(kind: type) -> dict[str, str]:
    """Return the text under each field in the class's source, by name; a base class's fields are those of its own."""
    found: dict[str, str] = {}
    for each in reversed(kind.__mro__):
        if each is not object and is_dataclass(each):
            found |= _texts_in(each)
    return found


def _texts_in(kind: type) -> dict[str, str]:
    tree = ast.parse(textwrap.dedent(inspect.getsource(kind)))
    body = tree.body[0].body if isinstance(tree.body[0], ast.ClassDef) else []
    return {
        field.target.id: text.value.value
        for field, text in pairwise(body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    }
