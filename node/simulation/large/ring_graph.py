"""Who is whose neighbour in a swarm that has settled: the rings that members draw, and random ties for the rest.

In a node this comes of records, hellos and admissions (gossip/updates/mesh.py). Here everybody knows everybody at once.
"""

import random
from collections.abc import Mapping, Sequence

from gossip.core.envelope import Scope
from gossip.core.ids import PeerId
from gossip.discovery.topology import CIRCLE, members_by, place_of, ring_count

MATCHINGS = 4
"""Times that a random partner is looked for, for each place beyond the rings'."""


class RingGraph:
    """Draws neighbours among any of these nodes. `degree`: most neighbours of a node."""

    def __init__(self, names: Sequence[str], scope: Scope, degree: int) -> None:
        self._degree = degree
        self._rings = ring_count(degree)
        self._places = [[place_of(scope, ring, PeerId(name)) for ring in range(self._rings)] for name in names]

    def draw(self, nodes: Sequence[int], rng: random.Random) -> Mapping[int, frozenset[int]]:
        """Return each of these nodes' neighbours, who have it for theirs: all of the others where there is a place for
        them."""
        if len(nodes) <= self._degree + 1:
            return {node: frozenset(nodes) - {node} for node in nodes}
        beside: dict[int, set[int]] = {node: set() for node in nodes}
        for ring in range(self._rings):
            order = sorted(nodes, key=lambda node: self._places[node][ring])
            for one, other in zip(order, [*order[1:], order[0]], strict=True):
                _tie(beside, one, other)
        free = [node for node in nodes for _ in range(self._degree - len(beside[node]))]
        for _ in range(MATCHINGS):
            rng.shuffle(free)
            pairs = zip(free[::2], free[1::2], strict=False)
            for one, other in pairs:
                if max(len(beside[one]), len(beside[other])) < self._degree:
                    _tie(beside, one, other)
            free = [node for node in nodes for _ in range(self._degree - len(beside[node]))]
        return {node: frozenset(others) for node, others in beside.items()}

    def believed(self, nodes: Sequence[int]) -> dict[int, int]:
        """Return how many members each of these nodes believes in, by the gaps beside it, where all who belong beside
        each other are (gossip/discovery/topology.py)."""
        if len(nodes) <= self._degree + 1:
            return dict.fromkeys(nodes, len(nodes))
        gaps = dict.fromkeys(nodes, 0)
        for ring in range(self._rings):
            order = sorted(nodes, key=lambda node: self._places[node][ring])
            for one, other in zip(order, [*order[1:], order[0]], strict=True):
                gap = (self._places[other][ring] - self._places[one][ring]) % CIRCLE
                gaps[one], gaps[other] = gaps[one] + gap, gaps[other] + gap
        return {node: members_by(gaps[node], 2 * self._rings) for node in nodes}


def _tie(beside: Mapping[int, set[int]], one: int, other: int) -> None:
    if one != other:
        beside[one].add(other)
        beside[other].add(one)
