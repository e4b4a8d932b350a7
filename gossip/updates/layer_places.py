"""How many edges are refined by each layer, and which: the places that a node's link has for refinements.

An edge is averaged by as many layers as both its ends have. If each end chose for itself, links that carry some of the
layers would carry one of each pair, all at once, and all would come late. So an edge gets a place by the request of
either end, is then fetched and served at both, and keeps its place round after round. Who has no place left refuses.

    a layer was late, here or at the neighbour's end     its edge loses the place
    layers of more neighbours were late than may lie     as many places are left as edges have one
    all came with time to spare                          there are as many more as fit into what was to spare
    nothing came or went for RESTS_ROUNDS                its edge loses the place, and rests for as long

Nothing of it is a claim of the neighbour: it is measured here, on transfers in both directions.
"""

import math
from collections.abc import Container
from dataclasses import dataclass
from statistics import median_high
from typing import Final, Literal

from gossip.core.ids import PeerId
from gossip.updates.throughput import LEAST_S

RESTS_ROUNDS: Final = 8
"""The most rounds of ours for which an edge has no place again that had a layer late, and for which its link gets no
more places than are left if those of more than `liars` neighbours were: two, four and then eight, and two again once it
has been in time for eight. So in the long run at most an eighth of the rounds have a transfer of it that is given up.
Links are not counted: a liar makes as many as it likes."""

MARGIN: Final = 1.5
"""Times what a transfer takes that must be left for one more: those that share a link begin at unlike times."""


Direction = Literal["received", "sent"]


@dataclass(frozen=True)
class _Moved:
    size: int
    since_update_s: float
    seconds: float


class LayerPlaces:
    """The places of one node, of whose neighbours `liars` may lie. `closings` is everywhere how many rounds of ours
    have begun to close."""

    def __init__(self, liars: int = 0) -> None:
        self._liars = liars
        self._depths: dict[PeerId, int] = {}
        """By neighbour: by how many layers the edge to it is refined."""
        self._most: dict[int, float] = {}
        """By layer: places, where they are bounded. The coarsest layer is tried with all neighbours at once, each finer
        one with one of them."""
        self._grows_at: dict[int, int] = {}
        self._given_at: dict[tuple[PeerId, int], int] = {}
        self._times_late: dict[tuple[PeerId, int], int] = {}
        self._rests: dict[tuple[PeerId, int], int] = {}
        self._late: dict[int, dict[PeerId, int]] = {}
        """By layer: whose was late since our newest update, and for how many rounds its edge rests."""
        self._moved: dict[int, dict[tuple[PeerId, Direction], _Moved]] = {}
        """By layer: the first transfer of each neighbour, each way, since our newest update. One that asks again, and
        as late as it likes, tells nothing of the link."""
        self._used_at: dict[tuple[PeerId, int], int] = {}
        """When a place was given, or a layer last came or went by it."""

    def admits(self, peer: PeerId, layer: int, closings: int) -> bool:
        """Return whether the edge to a neighbour has a place of a layer, or would get one."""
        if self._rests.get((peer, layer), 0) > closings:
            return False
        tried = 1 if self._grows_at.get(layer, 0) <= closings else 0
        return self.has(peer, layer) or self._count(layer) < max(tried, self._places(layer))

    def has(self, peer: PeerId, layer: int) -> bool:
        """Return whether the edge to a neighbour has a place of a layer."""
        return self._depths.get(peer, 0) >= layer

    def give(self, peer: PeerId, layer: int, closings: int) -> None:
        """Give the edge to a neighbour a place of a layer; no-op where it has one."""
        if not self.has(peer, layer):
            self._depths[peer] = layer
            self._given_at[peer, layer] = self._used_at[peer, layer] = closings

    def take_back(self, peer: PeerId, layer: int) -> None:
        """Take the places of a layer and of finer ones back from the edge to a neighbour; no-op where it has none."""
        self._depths[peer] = min(layer - 1, self._depths.get(peer, 0))

    def late(self, peer: PeerId, layer: int, closings: int) -> None:
        """Note that a layer did not come in time, here or at the neighbour's end. No-op while its edge rests."""
        if self._rests.get((peer, layer), 0) > closings:
            return
        before = 0 if self._in_time(peer, layer, closings) else self._times_late.get((peer, layer), 0)
        self._times_late[peer, layer] = before + 1
        rounds = min(RESTS_ROUNDS, 2 ** (before + 1))
        self.rest(peer, layer, closings + rounds)
        late = self._late.setdefault(layer, {})
        late[peer] = rounds
        if len(late) > self._liars:  # or one that gives up what it asks for would take all others' places
            self._most[layer] = self._count(layer)
            self._grows_at[layer] = closings + sorted(late.values(), reverse=True)[self._liars]

    def rest(self, peer: PeerId, layer: int, until: int) -> None:
        """Take back the places of a layer and of finer ones, and give none of this layer before such a closing."""
        self.take_back(peer, layer)
        self._rests[peer, layer] = until

    def moved(
        self,
        peer: PeerId,
        layer: int,
        size: int,
        *,
        way: Direction,
        since_update_s: float,
        seconds: float,
        closings: int,
    ) -> None:
        """Note a layer of `size` bytes that came from a neighbour or went to it: it ended so many seconds after the
        update that it refines had, and took so many of them."""
        took = _Moved(size, since_update_s, max(LEAST_S, seconds))
        self._moved.setdefault(layer, {}).setdefault((peer, way), took)
        self._used_at[peer, layer] = closings

    def grow(self, hidden_s: float, closings: int) -> None:
        """Add as many places of each layer as fit into what its slowest transfer since the last time left of the hidden
        seconds, at the speed of the fastest transfer of any."""
        self._take_back_unused(closings)
        moved = {layer: list(done.values()) for layer, done in self._moved.items()}
        self._moved, self._late = {}, {}
        speed = max((it.size / it.seconds for done in moved.values() for it in done), default=0.0)
        for layer, done in moved.items():
            if self._grows_at.get(layer, 0) <= closings:
                spare_s = max(0.0, hidden_s - max(it.since_update_s for it in done))
                size = median_high(it.size for it in done)  # one may be a liar's, of a byte
                room = math.floor(spare_s / (MARGIN * size / speed))
                self._most[layer] = max(self._places(layer), self._count(layer) + room)

    def _take_back_unused(self, closings: int) -> None:
        """Who asks for a layer and never takes it would else hold the only place of the finest one for good."""
        for peer, depth in list(self._depths.items()):
            for layer in range(1, depth + 1):
                if closings >= self._used_at.setdefault((peer, layer), closings) + RESTS_ROUNDS:
                    self.rest(peer, layer, closings + RESTS_ROUNDS)

    def keep(self, peers: Container[PeerId]) -> None:
        """Forget all others."""
        self._depths = {peer: depth for peer, depth in self._depths.items() if peer in peers}
        self._given_at = {key: at for key, at in self._given_at.items() if key[0] in peers}
        self._used_at = {key: at for key, at in self._used_at.items() if key[0] in peers}
        self._times_late = {key: times for key, times in self._times_late.items() if key[0] in peers}
        self._rests = {key: until for key, until in self._rests.items() if key[0] in peers}

    def _places(self, layer: int) -> float:
        return self._most.get(layer, math.inf if layer == 1 else 1)

    def _in_time(self, peer: PeerId, layer: int, closings: int) -> bool:
        return closings >= self._given_at.get((peer, layer), closings) + RESTS_ROUNDS

    def _count(self, layer: int) -> int:
        return sum(self.has(peer, layer) for peer in self._depths)
