"""Places as numbers of mixed radices, and the lines through them: what grid and base graph are made of.

n = r_1 r_2 ... r_m places are a box. Averaging along each of its axes once makes everything the mean of all: after the
first i axes a value is the mean over the first i digits. With all r_i at most k + 1 this is the Hyper-Hypercube of
2305.11420, with all r_i = 2 the hypercube.
"""

from collections.abc import Sequence
from functools import lru_cache
from math import prod

Radices = tuple[int, ...]


def line_of(place: int, radix: int, stride: int) -> tuple[int, int]:
    """Return the line along an axis that a place lies on: its number without that digit."""
    return place // (stride * radix), place % stride


def lines(places: Sequence[int], radix: int, stride: int) -> list[list[int]]:
    """Return the places, numbered in their order, by lines along one axis: places that are alike in all other
    digits."""
    found: dict[tuple[int, int], list[int]] = {}
    for number, place in enumerate(places):
        found.setdefault(line_of(number, radix, stride), []).append(place)
    return list(found.values())


def along(places: Sequence[int], radices: Radices, axis: int) -> list[list[int]]:
    """Return the places of a box by lines along an axis, counted round; a line of one is none."""
    if not radices:
        return []
    at = axis % len(radices)
    return lines(places, radices[at], prod(radices[:at]))


@lru_cache(maxsize=4096)
def radices_of(n: int, most: int) -> Radices | None:
    """Return n as a product of the fewest factors from 2 to `most`, larger ones first; None where it is none."""
    if n == 1:
        return ()
    found = [
        (factor, *rest)
        for factor in range(min(n, most), 1, -1)
        if n % factor == 0 and (rest := radices_of(n // factor, most)) is not None
    ]
    return min(found, key=len, default=None)
