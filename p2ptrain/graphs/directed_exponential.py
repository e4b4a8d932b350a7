"""The one-peer exponential graph as it was published (2110.13363): edges go one way."""

from collections.abc import Sequence
from fractions import Fraction

from p2ptrain.graphs.base import Draw, Form, Mixing
from p2ptrain.graphs.pairs import check_pairs_only, doublings, is_power_of_two


class DirectedExponentialGraph:
    """In round j everybody takes half of the one 2^j places before it on a circle, and sends to the one 2^j behind it.

    Exact for n = 2^m members after m rounds: the product of (I + P^(2^j)) / 2 over j < m is the sum of all P^i,
    i < 2^m, over 2^m (P moves everybody one place on). What a member sends is one copy, as in a pair.
    """

    name = "directed_exponential"
    form: Form = "edges"
    symmetric = False

    def __init__(self, *, group: int = 2) -> None:
        self.group = check_pairs_only(self.name, group)

    def period(self, members: int) -> int:
        """Return how many hops there are."""
        return doublings(members)

    def is_exact(self, members: int) -> bool:
        """Return whether the number is a power of two."""
        return is_power_of_two(members)

    def mixing(self, members: Sequence[str], index: int, draw: Draw) -> Mixing:
        """Return half of what the member 2^index places before has."""
        if len(members) == 1:
            return {members[0]: {}}
        hop = 2**index
        return {name: {members[place - hop]: Fraction(1, 2)} for place, name in enumerate(members)}
