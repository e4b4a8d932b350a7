"""Rounds that each cancel some frequencies of a circle until none is left: exact for any number of members.

Members stand on a circle of n places. A round with hop h and weight b is W = (1 - 2 b) I + b (P^h + P^-h), where P
moves everybody one place on. All such matrices have the discrete Fourier vectors as eigenvectors. That of frequency g
has the eigenvalue 1 - 2 b (1 - cos(2 pi h g / n)), which is 0 for b = 1 / (2 (1 - cos(2 pi h g / n))). The own weight 1
- 2 b is not negative as long as that cosine is not positive. For every frequency g that is no multiple of n there is
such a hop: h g / n takes all multiples of 1 / q modulo 1, q = n / gcd(n, g) >= 2 being the order of g, and of multiples
that are at most 1/2 apart one lies in [1/4, 3/4], where the cosine is not positive. So each round can cancel one
frequency that is left, with its negative, for good, since eigenvectors are common. After at most n // 2 rounds the only
eigenvalue that is not 0 is that of the constant vector, which is always 1: the product is J / n.

The matrices commute. So any `period` rounds on end of one order are exact, wherever they begin, which no other graph
here promises for all n. (The null-cascade graph of the literature promises the same; this is derived here, and not its
construction.)
"""

from collections.abc import Sequence
from functools import lru_cache
from math import cos, tau

from p2ptrain.graphs.base import Draw, Form, Mixing, Weight


class NullCascade:
    """Two partners each, `hop` places before and behind. The round that cancels most frequencies comes first, of
    several one of half a circle, where both partners are one: for n = 2^m that is m rounds, for a prime n (n - 1) / 2.
    """

    name = "null_cascade"
    form: Form = "edges"
    symmetric = True

    def __init__(self, *, group: int = 3) -> None:
        if group != 3:
            raise ValueError(f"the graph {self.name} has two partners for everybody: set group to 3, not {group}")
        self.group = group

    def period(self, members: int) -> int:
        """Return how many rounds it takes to cancel all frequencies."""
        return max(1, len(cascade(members)))

    def is_exact(self, members: int) -> bool:
        """Return True."""
        return True

    def mixing(self, members: Sequence[str], index: int, draw: Draw) -> Mixing:
        """Return the round that cancels the frequencies that are next."""
        n = len(members)
        found: dict[str, dict[str, Weight]] = {name: {} for name in members}
        for hop, weight in cascade(n)[index : index + 1]:
            for place, name in enumerate(members):
                for at in (place - hop, (place + hop) % n):
                    found[name][members[at]] = found[name].get(members[at], 0.0) + weight
        return found


@lru_cache(maxsize=256)
def cascade(n: int) -> tuple[tuple[int, float], ...]:
    """Return hop and weight b of each round, for n members."""
    left = set(range(1, n // 2 + 1))
    rounds = []
    while left:
        hop, angle = max(
            (
                (hop, hop * each % n)
                for hop in range(1, n // 2 + 1)
                for each in sorted(left)
                if _is_behind(hop * each, n)
            ),
            key=lambda chosen: (len(_cancelled(left, chosen[0], chosen[1], n)), 2 * chosen[0] == n),
        )
        left -= _cancelled(left, hop, angle, n)
        rounds.append((hop, 0.5 / (1 - cos(tau * angle / n))))
    return tuple(rounds)


def _is_behind(angle: int, n: int) -> bool:
    """Whether the cosine of angle / n of a turn is not positive. In whole numbers: cos(tau / 4) is none in floats."""
    return n <= 4 * (angle % n) <= 3 * n


def _cancelled(left: set[int], hop: int, angle: int, n: int) -> set[int]:
    """The frequencies that have the eigenvalue 0: those whose cosine is the same."""
    return {each for each in left if hop * each % n in (angle, n - angle)}
