"""Rates as people write them: `"20 Mbit/s"`, `"500 kB/s"`, or a number of bytes a second."""

import math
import re
from typing import Final

_RATE: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z/]+)")
_UNITS: Final = {
    "bit/s": 1 / 8,
    "kbit/s": 1e3 / 8,
    "mbit/s": 1e6 / 8,
    "gbit/s": 1e9 / 8,
    "b/s": 1.0,
    "kb/s": 1e3,
    "mb/s": 1e6,
    "gb/s": 1e9,
    "kib/s": 2.0**10,
    "mib/s": 2.0**20,
}
"""Bytes a second by unit, in lower case. A `b` is a byte, and a bit is written out."""


def bytes_per_s(value: object) -> float:
    """Return a rate in bytes a second. Raises ValueError for what is no rate."""
    if isinstance(value, str):
        found = _RATE.fullmatch(value.strip())
        factor = _UNITS.get(found[2].lower()) if found else None
        if found is None or factor is None:
            raise ValueError(f'{value!r} is no rate: write "20 Mbit/s", "500 kB/s", or a number of bytes a second')
        value = float(found[1]) * factor
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0 or math.isnan(value):
        raise ValueError("a rate is above 0: leave it out for a link without a limit")
    return float(value)
