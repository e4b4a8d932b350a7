"""How members are cut into the groups of a round, each of `least` to 2 least - 1 members, which all who know the same
members find alike.

`even`       in a drawn order, into floor(n / least) groups. As many groups as there can be. One that some members see
             and others do not moves all groups behind its place: most groups are then unlike for these two.
`bisection`  in halves that each member draws its side of, until a part has fewer than 2 least members. A half of
             fewer than `least` is drawn again. Who is seen by some changes its own group, and seldom a few beside it.
             Groups have 1.3 times `least` members in the mean, so that there are fewer of them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from p2ptrain.graphs.passes import drawn

TURNS: Final = 256
"""Draws of a half at most: for 2 least members four are needed in the mean for 4, ten for 32. Members that are drawn by
one and the same thing never part; where that leaves no half large enough, the order decides."""


@dataclass(frozen=True)
class GroupCut:
    """`groups` cuts members, by what each is drawn by, for a round; `fewest` returns the least members that make so
    many groups of `least`, however they are drawn."""

    groups: Callable[[Mapping[str, str], bytes, int, int], list[list[str]]]
    fewest: Callable[[int, int], int]


def even(keys: Mapping[str, str], seed: bytes, round: int, least: int) -> list[list[str]]:
    """Cut the members into floor(n / least) groups."""
    members = _in_order(keys, seed, round)
    groups = len(members) // least
    return [members[at * len(members) // groups : (at + 1) * len(members) // groups] for at in range(groups)]


def bisection(keys: Mapping[str, str], seed: bytes, round: int, least: int) -> list[list[str]]:
    """Cut the members in halves, and these again, while both have `least` members."""
    if len(keys) < least:
        return []
    return _halved(_in_order(keys, seed, round), keys, seed, round, least, path="")


def _halved(
    members: Sequence[str], keys: Mapping[str, str], seed: bytes, round: int, least: int, *, path: str
) -> list[list[str]]:
    if len(members) < 2 * least:
        return [list(members)]
    halves = [list(members[: len(members) // 2]), list(members[len(members) // 2 :])]
    for turn in range(TURNS):
        place = f"{path}{turn}"
        sides = {name: drawn(seed, round, place, keys[name])[0] & 1 for name in members}
        drawn_halves = [[name for name in members if sides[name] == side] for side in (0, 1)]
        if min(map(len, drawn_halves)) >= least:
            halves, path = drawn_halves, place
            break
    return [
        group
        for side, half in enumerate(halves)
        for group in _halved(half, keys, seed, round, least, path=f"{path}.{side}/")
    ]


def _in_order(keys: Mapping[str, str], seed: bytes, round: int) -> list[str]:
    return sorted(keys, key=lambda name: (drawn(seed, round, keys[name]), name))


CUTS: Final[Mapping[str, GroupCut]] = {
    "even": GroupCut(even, lambda groups, least: groups * least),
    "bisection": GroupCut(bisection, lambda groups, least: max(least, (groups - 1) * (2 * least - 1) + 1)),
}
