"""What a swarm trains and how: a nested table that membership carries and signs, and does not interpret.

It is msgpack with maps, unlike every other format here: keys are text, no number is NaN or infinite, and the whole has
bounds on bytes, entries and depth.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Final, TypeAlias

import msgpack

from gossip.core.errors import Reason, RemoteError
from gossip.core.limits import MAX_COUNTER
from gossip.core.membership_limits import (
    MAX_KEY_CHARS,
    MAX_SETTING_CHARS,
    MAX_SETTINGS,
    MAX_SETTINGS_BYTES,
    MAX_SETTINGS_DEPTH,
)
from gossip.core.wire import malformed, pack

Setting: TypeAlias = "str | int | float | bool | list[Setting] | dict[str, Setting] | None"
Settings: TypeAlias = Mapping[str, Setting]

_SCALARS: Final = (str, int, float, bool, type(None))


def pack_settings(settings: Settings) -> bytes:
    """Return the one encoding of a table: keys in order. Raises RemoteError as `parse_settings` does, which checks
    it."""
    try:
        packed = pack(_in_order(dict(settings)))
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise malformed("settings are tables and lists of text, numbers, true, false and nothing") from error
    parse_settings(packed)
    return packed


def _in_order(value: object) -> object:
    if isinstance(value, dict):
        return {key: _in_order(value[key]) for key in sorted(value)}
    return [_in_order(each) for each in value] if isinstance(value, list | tuple) else value


def parse_settings(data: bytes) -> dict[str, Setting]:
    """Return the table. Raises RemoteError(OVERSIZE | MALFORMED)."""
    if len(data) > MAX_SETTINGS_BYTES:
        raise RemoteError(Reason.OVERSIZE, f"settings of more than {MAX_SETTINGS_BYTES} bytes")
    try:
        table = msgpack.unpackb(
            data, raw=False, strict_map_key=True, max_array_len=MAX_SETTINGS, max_map_len=MAX_SETTINGS, max_ext_len=0
        )
        same = pack(_in_order(table)) == data
    except (ValueError, TypeError, RecursionError, msgpack.exceptions.UnpackException) as error:
        raise malformed("the settings are not msgpack") from error
    # A key that occurs twice, or out of order, is encoded differently.
    if type(table) is not dict or not same:
        raise malformed("the settings are no table in its one spelling")
    _check(table)
    return table


def _check(table: dict[str, Setting]) -> None:
    for entries, (depth, value) in enumerate(_walk(table, 1), start=1):
        if entries > MAX_SETTINGS or depth > MAX_SETTINGS_DEPTH:
            raise RemoteError(Reason.OVERSIZE, "too many settings, or too deep")
        _check_value(value)


def _walk(value: object, depth: int) -> Iterator[tuple[int, object]]:
    """Yield every key and value below `value`, and the depth of its table or list."""
    if isinstance(value, dict):
        for key, each in value.items():
            if type(key) is not str or not 0 < len(key) <= MAX_KEY_CHARS:
                raise malformed("a setting's name is short text")
            _check_text(key)
            yield depth + isinstance(each, dict | list), each
            yield from _walk(each, depth + 1)
    elif isinstance(value, list):
        for each in value:
            yield depth + isinstance(each, dict | list), each
            yield from _walk(each, depth + 1)


def _check_value(value: object) -> None:
    if type(value) is str:
        _check_text(value)
    elif type(value) is int and abs(value) > MAX_COUNTER:
        raise malformed("a whole number that a double cannot hold")
    elif type(value) is float and not math.isfinite(value):
        raise malformed("a number that is not finite")
    elif type(value) not in (*_SCALARS, dict, list):
        raise malformed("a setting of no known type")


def _check_text(text: str) -> None:
    """Check that a text is printable, since it is shown on terminals, and of bounded length."""
    if len(text) > MAX_SETTING_CHARS or (text and not text.isprintable()):
        raise malformed("text in the settings is printable, and not longer than its bound")
