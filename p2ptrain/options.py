"""The options that members declare: the keyword parameters of what builds them.

    def __init__(self, *, f: int = 1, tau: Annotated[float | None, "How far a vector is followed."] = None) -> None

A parameter is an option that a file can set if its type is made of text, numbers, true and false. A parameter of any
other type (a callable, another codec) is given by code alone. The text in `Annotated` is what `config show` prints.
"""

import inspect
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Final, Literal, TypeAlias, Union, get_args, get_origin, get_type_hints

Factory: TypeAlias = Callable[..., object]
Setting: TypeAlias = str | int | float | bool
"""A value that a file can hold, and that is checked against an option's type."""

_NONE: Final = type(None)
_WORDS: Final = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}
_JSON_TYPES: Final = {str: "string", int: "integer", float: "number", bool: "boolean"}


class BadOptionError(ValueError):
    """An option that a member does not take, or one that it needs and did not get; the message lists its options."""


@dataclass(frozen=True, kw_only=True)
class Option:
    """One keyword parameter of a member's factory that a file can set."""

    EMPTY: ClassVar = inspect.Parameter.empty
    """The default of an option that must be given."""

    name: str
    kinds: tuple[type, ...]
    """Of str, int, float and bool, those that a value may be; none: any, since the factory says nothing."""
    default: object
    """EMPTY where there is none."""
    about: str = ""

    def convert(self, value: object) -> object:
        """Return the value as the factory expects it: a whole number is also a number. Raises BadOptionError."""
        if not self.kinds or not isinstance(value, Setting) or type(value) in self.kinds:
            return value
        if float in self.kinds and type(value) is int:
            return float(value)
        if int in self.kinds and type(value) is float and value.is_integer():
            return int(value)
        wanted = " or ".join(_WORDS[kind] for kind in self.kinds)
        raise BadOptionError(f"{self.name} must be {wanted}, not {value!r}")

    def json_schema(self) -> dict[str, Any]:
        """Return the option as a property of a JSON Schema: it may be left out, which null says as well."""
        kinds = [{"type": _JSON_TYPES[kind]} for kind in self.kinds]
        title = self.name.replace("_", " ").title()
        return {"anyOf": [*kinds, {"type": "null"}], "default": None, "title": title} if kinds else {"title": title}


@lru_cache(maxsize=256)
def options_of(factory: Factory) -> Mapping[str, Option]:
    """Return the options of a factory that a file can set, by name, in the order of its parameters."""
    hints = _hints(factory)
    found: dict[str, Option] = {}
    for each in inspect.signature(factory).parameters.values():
        if each.kind in (each.POSITIONAL_ONLY, each.VAR_POSITIONAL, each.VAR_KEYWORD):
            continue
        kinds = _kinds(hints.get(each.name, Any))
        if kinds is not None:
            about = _about(hints.get(each.name))
            found[each.name] = Option(name=each.name, kinds=kinds, default=each.default, about=about)
    return types.MappingProxyType(found)


def converted(factory: Factory, what: str, options: Mapping[str, object]) -> dict[str, object]:
    """Return the options with values of the declared types; those that are not declared as they are. BadOptionError
    names `what` has them."""
    declared = options_of(factory)
    try:
        return {name: declared[name].convert(value) if name in declared else value for name, value in options.items()}
    except BadOptionError as error:
        raise BadOptionError(f"{what}: {error}") from None


def _hints(factory: Factory) -> Mapping[str, Any]:
    """The annotations; none where they cannot be read: a third party's may name what is not imported."""
    try:
        made_by: Any = inspect.getattr_static(factory, "__init__") if isinstance(factory, type) else factory
        return get_type_hints(made_by, include_extras=True)
    except (NameError, TypeError, AttributeError):
        return {}


def _kinds(hint: Any) -> tuple[type, ...] | None:
    """The plain types in an annotation; () for any; None for one that no file can hold."""
    if hint is Any:
        return ()
    if get_origin(hint) is Annotated:
        return _kinds(get_args(hint)[0])
    if get_origin(hint) is Literal:
        return _unique(type(value) for value in get_args(hint))
    parts = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    if any(part not in (*_WORDS, _NONE) for part in parts):
        return None
    return _unique(part for part in parts if part is not _NONE)


def _unique(kinds: Iterable[type]) -> tuple[type, ...]:
    return tuple(dict.fromkeys(kinds))


def _about(hint: Any) -> str:
    texts = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
    return next((text for text in texts if isinstance(text, str)), "")
