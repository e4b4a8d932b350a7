"""Mistakes in the configuration, said in one line: what is wrong, what was perhaps meant, what there is."""

import difflib
from collections.abc import Iterable, Mapping

from pydantic import ValidationError

from node.config.toml_source import Raw, place_of
from node.system.errors import UsageError

Keys = Mapping[str, "list[str] | None"]


def from_validation(error: ValidationError, keys: Keys, raw: Raw) -> UsageError:
    """Return the error for the first mistake that pydantic found in `raw`."""
    first = error.errors(include_url=False)[0]
    where = [str(part) for part in first["loc"]]
    if first["type"] in {"extra_forbidden", "unexpected_keyword_argument"}:
        return unknown_key(where, keys, raw)
    name = ".".join(where[:2])
    message = str(first["msg"]).removeprefix("Value error, ")
    if first["type"] in {"tuple_type", "list_type"}:
        return UsageError(f"{name} must be a list", f'for example {name}=["one", "two"]')
    if len(where) == 1 and first["type"] != "value_error":
        return UsageError(f"{name} must be a section of keys", f"write [{name}] and the keys below it")
    return UsageError(f"{name}: {_lower(message)}{_got(first.get('input'))}", "")


def from_plan(what: str, error: ValidationError, keys: Iterable[str]) -> UsageError:
    """Return the error for one mistake that pydantic found in the plan `what`, whose keys are `keys`. An unknown key
    comes first: where it is a typing error, what else is missing follows from it."""
    found = error.errors(include_url=False)
    first = next((each for each in found if each["type"] == "extra_forbidden"), found[0])
    where = ".".join(map(str, first["loc"]))
    if first["type"] == "extra_forbidden":
        known = list(keys) if len(first["loc"]) == 1 else []
        listed = f"there are {', '.join(known)}" if known else "mend the plan"
        return UsageError(f"{what}: unknown key {where}{did_you_mean(where, known)}", listed)
    message = str(first["msg"]).removeprefix("Value error, ")
    return UsageError(f"{what}: {f'{where}: ' if where else ''}{message}", "mend the plan")


def unknown_key(where: list[str], keys: Keys, raw: Raw, takers: Mapping[str, str] | None = None) -> UsageError:
    """Return the error for a key that does not exist, with the file and line that name it. `takers`: whose options some
    of the keys are."""
    unknown, place = _unknown_key(where, keys, takers or {}), place_of(raw, *where[:2])
    return UsageError(f"{place}: {unknown.message}", unknown.hint) if place else unknown


def _unknown_key(where: list[str], keys: Keys, takers: Mapping[str, str]) -> UsageError:
    if len(where) == 1:
        sections = list(keys)
        known = f"there are {', '.join(f'[{name}]' for name in sections)}"
        return UsageError(f"unknown section [{where[0]}]{did_you_mean(where[0], sections)}", known)
    section, key = where[0], where[1]
    names = keys.get(section) or []
    elsewhere = [other for other, there in keys.items() if there and key in there]
    if elsewhere:
        return UsageError(f"unknown key {section}.{key}", f"did you mean {elsewhere[0]}.{key}?")
    guess = did_you_mean(key, names, prefix=f"{section}.")
    told = [f"{name} ({takers[name]})" if name in takers else name for name in sorted(names)]
    return UsageError(f"unknown key {section}.{key}{guess}", f"[{section}] has {', '.join(told)}")


def did_you_mean(name: str, names: list[str], prefix: str = "") -> str:
    """Return a question with the nearest of the names, or nothing."""
    abbreviated = [each for each in names if name == "".join(word[:1] for word in each.split("_"))]  # lr: learning_rate
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6) or abbreviated
    return f", did you mean {prefix}{close[0]}?" if close else ""


def _lower(message: str) -> str:
    return message[:1].lower() + message[1:]


def _got(value: object) -> str:
    return f", not {value!r}" if isinstance(value, str | int | float | bool) else ""
