"""Quantities as people write them: `20Mbit`, `2.5MB`, `80ms`, `7B`, `90%`.

A rate names bits or bytes in full: `Mbit` is 10^6 bits, `MB` 10^6 bytes, `MiB` 2^20 bytes. `Mb` may be either, and is
refused. Everything here raises QuantityError, whose text is one line that says what would be right.
"""

import math
import re
from collections.abc import Mapping
from typing import Final

_WRITTEN: Final = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]{1,3})?|\.[0-9]+)\s*([A-Za-z%/]*)\s*", re.ASCII)

LONGEST: Final = 40
"""Characters of a quantity that are read, or shown again in a message."""

BITS: Final[Mapping[str, float]] = {
    **{f"{prefix}bit": 1e3**power for power, prefix in enumerate(("", "k", "M", "G", "T"))},
    **{f"{prefix}B": 8 * 1e3**power for power, prefix in enumerate(("", "k", "M", "G", "T"))},
    **{f"{prefix}iB": 8 * 2.0 ** (10 * power) for power, prefix in enumerate(("K", "M", "G", "T"), start=1)},
}
"""Bits by unit. Capitals count: an `m` is no million."""

SECONDS: Final[Mapping[str, float]] = {
    "us": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "min": 60.0,
    "h": 3600.0,
    "d": 86_400.0,
}

COUNTS: Final[Mapping[str, float]] = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "B": 1e9, "b": 1e9, "T": 1e12}


class QuantityError(ValueError):
    """What is written is no quantity of the kind that is asked for."""


def bits_per_second(text: str) -> float:
    """Return a rate in bits a second, above 0: `20Mbit`, `20 Mbit/s`, `2.5MB/s`."""
    value, unit = _split(text, "a rate", "20Mbit or 2.5MB")
    name = unit.removesuffix("/s").removesuffix("ps")
    if name not in BITS:
        raise QuantityError(f"{_short(text)} is no rate: {_meant(name)}, such as 20Mbit or 2.5MB (a second)")
    return _above_zero(value * BITS[name], text, "20Mbit")


def bytes_in(text: str) -> float:
    """Return a size in bytes, above 0: `24GB`, `24GiB`."""
    value, unit = _split(text, "a size", "24GB")
    if unit not in BITS:
        raise QuantityError(f"{_short(text)} is no size: {_meant(unit)}, such as 24GB or 24GiB")
    return _above_zero(value * BITS[unit] / 8, text, "24GB")


def seconds(text: str) -> float:
    """Return a time in seconds, 0 or more: `80ms`, `1.5s`, `20min`, `3h`, `2d`."""
    value, unit = _split(text, "a time", "80ms")
    if value == 0 and not unit:
        return 0.0
    if unit not in SECONDS:
        raise QuantityError(f"{_short(text)} is no time: end it with {', '.join(SECONDS)}, such as 80ms")
    found = value * SECONDS[unit]
    if not math.isfinite(found):
        raise QuantityError(f"{_short(text)} is no time that ends: write 80ms")
    return found


def duration(text: str) -> float:
    """Return a time in seconds above 0, as `seconds` reads it."""
    return _above_zero(seconds(text), text, "350ms")


def count(text: str) -> float:
    """Return a number above 0: `7e9`, `7B`, `350M`, `1.5T`."""
    value, unit = _split(text, "a number", "7e9 or 7B")
    if unit not in COUNTS:
        raise QuantityError(f"{_short(text)} is no number: write 7e9, or end it with k, M, B or T")
    return _above_zero(value * COUNTS[unit], text, "7e9 or 7B")


def share(text: str) -> float:
    """Return a share above 0 and up to 1: `0.9`, `90%`."""
    value, unit = _split(text, "a share", "0.9 or 90%")
    value = value / 100 if unit == "%" else value
    if unit not in ("", "%") or not 0 < value <= 1:
        raise QuantityError(f"{_short(text)} is no share: write a number above 0 and up to 1, or a percentage")
    return value


def _split(text: str, kind: str, example: str) -> tuple[float, str]:
    if re.match(r"\s*-\s*[0-9.]", text):
        raise QuantityError(f"{_short(text)} must not be negative: write {example}")
    found = _WRITTEN.fullmatch(text) if len(text) <= LONGEST else None
    value = float(found[1]) if found else math.nan
    if found is None or not math.isfinite(value):
        raise QuantityError(f"{_short(text)} is no {kind.split()[-1]}: write {example}")
    return value, found[2]


def _above_zero(value: float, text: str, example: str) -> float:
    if not 0 < value < math.inf:
        raise QuantityError(f"{_short(text)} must be above 0 and finite: write {example}")
    return value


def _meant(unit: str) -> str:
    if unit in ("b", "kb", "Kb", "Mb", "mb", "Gb", "gb"):
        return (
            f"{unit} may be bits or bytes: write {unit[:-1].upper().replace('K', 'k')}bit or "
            f"{unit[:-1].upper().replace('K', 'k')}B"
        )
    return "name bit or B (bytes)" if not unit else f"there is no unit {unit!r}"


def _short(text: str) -> str:
    return repr(text if len(text) <= LONGEST else text[:LONGEST] + "...")
