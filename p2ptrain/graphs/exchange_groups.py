"""Rounds that are groups: a mixing matrix of them, and a member's group in a mixing matrix."""

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple

from p2ptrain.graphs.base import Mixing, Weight

PlaceGroup = tuple[Sequence[int], Fraction]
"""Places in the order of a pass, and the step that who stands there goes."""

MEAN = Fraction(1)
"""The step to the group's mean."""


class ExchangeGroup(NamedTuple):
    """Members who average with each other: x' = x + step (mean of all of them - x)."""

    members: frozenset[str]
    step: float


def mixing_of(members: Sequence[str], groups: Iterable[PlaceGroup]) -> Mixing:
    """Return the mixing matrix of disjoint groups. Who is in none keeps what it has."""
    found: dict[str, Mapping[str, Weight]] = {name: {} for name in members}
    for places, step in groups:
        names = [members[place] for place in places]
        weight = step / len(names)
        for name in names:
            found[name] = {other: weight for other in names if other != name}
    return found


def group_in(mixing: Mixing, own: str) -> ExchangeGroup:
    """Return the group that a member is in. ValueError where its partners do not average with each other by the same
    weight, and so are no group."""
    members = frozenset((own, *mixing[own]))
    weights = {weight for name in members for weight in mixing[name].values()}
    if any(mixing[name].keys() | {name} != members for name in members) or len(weights) > 1:
        raise ValueError(f"{own} and its partners are no group: some of them do not average with each other alike")
    step = max(weights) * len(members) if weights else MEAN
    return ExchangeGroup(members, float(step))
