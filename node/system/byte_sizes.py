"""Sizes in bytes as people write them: `6GiB`, `500 MB`, `2e9`."""

import math
import re
from typing import Final

UNITS: Final = {
    "": 1,
    **{f"{prefix}b": 1000**power for power, prefix in enumerate(("", "k", "m", "g", "t"))},
    **{f"{prefix}ib": 1024**power for power, prefix in enumerate(("k", "m", "g", "t"), start=1)},
}
"""Bytes by unit, in small letters."""

EXAMPLE: Final = "write a number with GiB, MiB, GB or MB, such as 6GiB"

_WRITTEN: Final = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?(?:[eE][0-9]{1,2})?)\s*([A-Za-z]*)\s*", re.ASCII)

LONGEST: Final = 40
"""Characters that are read."""


def byte_size(written: object) -> int:
    """Return a size above 0 in whole bytes. Raises ValueError, whose text says what would be right."""
    if isinstance(written, bool) or not isinstance(written, int | float | str):
        raise ValueError(f"a size is wanted: {EXAMPLE}")
    text = str(written)
    found = _WRITTEN.fullmatch(text) if len(text) <= LONGEST else None
    unit = found[2].lower() if found else ""
    if found is None or unit not in UNITS:
        raise ValueError(f"no size: {EXAMPLE}")
    value = float(found[1]) * UNITS[unit]
    if not 1 <= value < math.inf:
        raise ValueError(f"a size must be 1 byte or more: {EXAMPLE}")
    return int(value)
