"""Where configuration comes from: TOML files and `--set section.key=value`, merged into one plain dictionary."""

import datetime
import math
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

import tomli_w

from node.system.errors import UsageError

Raw: TypeAlias = dict[str, Any]
"""Sections of keys of TOML values, not yet checked."""

DOTTED: Final = ("sync", "participation")
"""Sections in which `member.option` is one key: TOML reads `rotated.block = 64` as a table in a table."""

TABLES: Final = (("sync", "residency"), ("participation", "options"))
"""Keys of such a section whose value is a table."""

MAX_FILE_BYTES = 1 << 20
"""A configuration is a few kilobytes; a larger file is a checkpoint or a log given by mistake."""


_HEADER = re.compile(r"\s*\[\s*([\w-]+)\s*\]")
_KEY = re.compile(r"\s*([\w-]+)\s*(?:=|\.\s*([\w-]+)\s*=)")


class Key(str):
    """A section or key that a file names. It says where, and goes through every merge as any key does."""

    place: str = ""


def place_of(raw: Raw, *where: str) -> str:
    """Return file and line of a section, or of a section's key; "" where no file names it."""
    inside: object = raw
    found = ""
    for name in where:
        if not isinstance(inside, dict):
            return ""
        found = next((each for each in inside if each == name), "")
        inside = inside.get(name)
    return getattr(found, "place", "")


def no_toml(what: Path | str, error: tomllib.TOMLDecodeError | UnicodeDecodeError) -> UsageError:
    """Return the error for a file, or a text, that is no TOML."""
    if isinstance(error, UnicodeDecodeError):
        return UsageError(f"{what} is not valid TOML: it is no text in UTF-8", "save it as UTF-8, or give another file")
    return UsageError(f"{what} is not valid TOML: {error}", "mend that line")


def read_file(path: Path) -> Raw:
    """Return the sections of a TOML file, whose keys know where they stand. Raises UsageError."""
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise UsageError(f"{path} is too large for a configuration file", "give a TOML file with --config")
        text = path.read_text(encoding="utf-8-sig")  # some editors of Windows write a mark before the first line
        return _placed(tomllib.loads(text), path, _lines_in(text))
    except FileNotFoundError:
        raise UsageError(f"there is no configuration file {path}", "give a TOML file with --config") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise no_toml(path, error) from None
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", "give a TOML file with --config") from None


def _placed(raw: Raw, path: Path, lines: dict[tuple[str, ...], int]) -> Raw:
    def key(*where: str) -> Key:
        made = Key(".".join(where[1:] or where))
        made.place = f"{path}, line {lines[where]}" if where in lines else str(path)
        return made

    return {
        key(section): {key(section, *name): value for name, value in _pairs(section, keys)}
        if isinstance(keys, dict)
        else keys
        for section, keys in raw.items()
    }


def _pairs(section: str, keys: Raw) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The section's keys and values; in a section of DOTTED also those one table deeper."""
    for name, value in keys.items():
        if section in DOTTED and isinstance(value, dict) and (section, name) not in TABLES:
            yield from (((name, option), each) for option, each in value.items())
        else:
            yield (name,), value


def _lines_in(text: str) -> dict[tuple[str, ...], int]:
    """On which lines sections and keys are first named, as people write them: the parser does not tell. A key in an
    inline table has none."""
    found: dict[tuple[str, ...], int] = {}
    section: tuple[str, ...] = ()
    for number, line in enumerate(text.splitlines(), start=1):
        if header := _HEADER.match(line):
            section = (header[1],)
            found.setdefault(section, number)
        elif named := _KEY.match(line):
            for size in range(1, len(where := (*section, *filter(None, named.groups()))) + 1):
                found.setdefault(where[:size], number)
    return found


def parse_set(text: str) -> tuple[str, str, Any]:
    """Return section, key and value of one `--set`, whose key may be `member.option` in a section of DOTTED.

    The value is a TOML value, or else the string as it stands. Raises UsageError when the text has another form.
    """
    path, equals, value = text.partition("=")
    parts = path.strip().split(".")
    if not equals or not 2 <= len(parts) <= (3 if parts[0] in DOTTED else 2) or not all(parts):
        raise UsageError(f"--set {text!r} is not section.key=value", "for example --set train.rounds=20")
    return parts[0], ".".join(parts[1:]), parse_value(value.strip())


def with_set(raw: Raw, over: Raw, text: str) -> Raw:
    """Return the section that one `--set` sets. One that names a key within a table (TABLES) leaves the table's others
    as they are in `over`, or else in `raw`."""
    section, key, value = parse_set(text)
    table, _, inner = key.partition(".")
    if not inner or (section, table) not in TABLES:
        return {section: {key: value}}
    before = over.get(section, {}).get(table) or raw.get(section, {}).get(table) or {}
    return {section: {table: {**before, inner: value}}}


def inline_table(values: Mapping[str, object]) -> str:
    """Return a table as TOML has it in one line."""
    return f"{{{', '.join(_inline(key, value) for key, value in values.items())}}}"


def _inline(key: str, value: object) -> str:
    if isinstance(value, Mapping):
        name = tomli_w.dumps({key: 0}).partition(" =")[0]
        return f"{name} = {inline_table(value)}"
    return tomli_w.dumps({key: value}).strip()


def parse_value(text: str) -> Any:
    """Return a TOML value (number, boolean, quoted string, list, table), anything else as the text itself.

    So are dates, and TOML's `nan` and `inf`: no setting is meant to be one, and two attacks have these names.
    """
    try:
        parsed = tomllib.loads(f"v = {text}")
    except tomllib.TOMLDecodeError:
        return text
    value = parsed.get("v")
    return text if parsed.keys() != {"v"} or _is_word(value) or "#" in _unquoted(text) else value


def _is_word(value: object) -> bool:
    return isinstance(value, datetime.date | datetime.time) or (isinstance(value, float) and not math.isfinite(value))


def _unquoted(text: str) -> str:
    """The text, or nothing when it opens with a quote: a `#` outside quotes would begin a TOML comment."""
    return "" if text[:1] in {'"', "'", "[", "{"} else text


def merge(into: Raw, other: Raw) -> None:
    """Lay `other` over `into`, section by section and key by key."""
    for section, keys in other.items():
        if isinstance(keys, dict) and isinstance(into.get(section), dict):
            into[section].update(keys)
        else:
            into[section] = dict(keys) if isinstance(keys, dict) else keys


def drop_options_of_other_names(raw: Raw, over: Raw) -> None:
    """Drop options of a name that is replaced: `--task digits` over a file for byte-lm takes none of byte-lm's options
    along."""
    for section in ("task", "attack"):
        old, new = raw.get(section), over.get(section)
        if isinstance(old, dict) and isinstance(new, dict) and new.get("name", old.get("name")) != old.get("name"):
            raw[section] = {}
