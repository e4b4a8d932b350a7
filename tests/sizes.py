"""Which suite runs what, and how much of it (docs/decisions/0057)."""

import os
import zlib
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

import pytest

LEAST_EXAMPLES = 8


def examples(count: int) -> int:
    """How many examples hypothesis draws: `count` in `make thorough`, a third of them in `make test`."""
    return count if os.environ.get("THOROUGH") else min(count, max(LEAST_EXAMPLES, count // 3))


def thorough_but(quick: Collection[Any], values: Iterable[Any]) -> list[Any]:
    """Parameters of one test, of which `make test` runs the `quick` ones and `make thorough` the others. A tuple is
    several parameters."""
    each = [(value, value if isinstance(value, tuple) else (value,)) for value in values]
    assert (missing := [value for value in quick if value not in [it for it, _ in each]]) == [], missing
    return [
        pytest.param(*parameters, marks=() if value in quick else pytest.mark.thorough) for value, parameters in each
    ]


@dataclass(frozen=True)
class Share:
    """One part of `count` of the tests. Each test is in one of them, whatever other tests there are."""

    part: int
    count: int

    def has(self, name: str) -> bool:
        """Return whether the test of this name is in it."""
        return zlib.crc32(name.encode()) % self.count == self.part


def share(words: str) -> Share:
    """Parse K/N: part K of N; K may be any number, such as how many commits there are. ValueError for other words."""
    part, _, count = words.partition("/")
    if int(count) < 1:
        raise ValueError(f"{words!r} is no share")
    return Share(int(part) % int(count), int(count))
