"""The one-peer exponential graph (2110.13363) with edges that go both ways, as an exchange between two does."""

from collections.abc import Iterator, Sequence
from math import gcd

from p2ptrain.graphs.base import Draw, Form, Mixing
from p2ptrain.graphs.exchange_groups import MEAN, mixing_of
from p2ptrain.graphs.pairs import check_pairs_only, doublings, is_power_of_two


class ExponentialGraph:
    """Pairs whose members stand 1, 2, 4, ... places from each other on a circle.

    Hops of one length are cycles. Along each of them members are paired two by two; of an odd cycle one is left over.
    Exact for n = 2^m members after m rounds: hop 2^j then pairs the places that differ in binary digit j alone, which
    is the hypercube. For other n the hops are spread out, and that is all.
    """

    name = "exponential"
    form: Form = "means"
    symmetric = True

    def __init__(self, *, group: int = 2) -> None:
        self.group = check_pairs_only(self.name, group)

    def period(self, members: int) -> int:
        """Return how many hops there are."""
        return doublings(members)

    def is_exact(self, members: int) -> bool:
        """Return whether the number is a power of two."""
        return is_power_of_two(members)

    def mixing(self, members: Sequence[str], index: int, draw: Draw) -> Mixing:
        """Return the pairs at a distance of 2^index."""
        return mixing_of(members, ((pair, MEAN) for pair in _pairs(len(members), 2**index)))


def _pairs(n: int, hop: int) -> Iterator[tuple[int, int]]:
    cycles = gcd(n, hop)
    for first in range(cycles):
        cycle = [(first + step * hop) % n for step in range(n // cycles)]
        yield from zip(cycle[::2], cycle[1::2], strict=False)  # the last of an odd cycle has nobody
