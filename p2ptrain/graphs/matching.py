"""A random matching: one partner, another in every round, as NoLoCo (2506.10911) has it."""

from collections.abc import Sequence
from fractions import Fraction
from itertools import combinations

from p2ptrain.graphs.base import Draw, Form, Mixing, Weight
from p2ptrain.graphs.pairs import check_pairs_only

HALF: Weight = Fraction(1, 2)


class RandomMatching:
    """Pairs, drawn anew in every round.

    Every pair of members draws a number for the round, and the pairs are taken in its order as long as both are free.
    (Taking the shuffled list of members two by two would shift by one, and match nobody alike, where one member is
    known to some only.) With an odd number one is left over, and averages with nobody. Never exact, but for two
    members. Cost: O(n^2 log n) for n members.
    """

    name = "matching"
    form: Form = "means"
    symmetric = True

    def __init__(self, *, group: int = 2) -> None:
        self.group = check_pairs_only(self.name, group)

    def period(self, members: int) -> int:
        """Return 1: each round is drawn by itself."""
        return 1

    def is_exact(self, members: int) -> bool:
        """Return whether one pair is everybody."""
        return members <= 2

    def mixing(self, members: Sequence[str], index: int, draw: Draw) -> Mixing:
        """Return pairs in the order of their draws."""
        found: dict[str, dict[str, Weight]] = {name: {} for name in members}
        free = set(members)
        for one, other in sorted(combinations(sorted(members), 2), key=lambda pair: draw(*pair)):
            if {one, other} <= free:
                found[one], found[other] = {other: HALF}, {one: HALF}
                free -= {one, other}
        return found
