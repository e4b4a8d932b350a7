"""Which suite runs what, and how much of it (docs/decisions/0057)."""

import os
from collections.abc import Collection, Iterable
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
