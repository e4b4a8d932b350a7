"""Who should be whose neighbour in a swarm of more than `degree` + 1: rings that every member computes alike.

For each ring every member has a place on a circle, the hash of the run, the ring's number and its peer id. On each ring
a member belongs beside the next one before it and the next one after it. A union of a few random Hamiltonian cycles is
an expander with high probability (Friedman 2003; used so by Law and Siu 2003), and needs no agreement: a member that
knows its own nearest members knows its edges, whatever else it does not know. A member that comes or goes changes one
gap on each ring.

The rings do not use all places: some stay for any newcomer, so that an attacker who grinds ids that hash next to a
victim's takes the ring places, and not these (docs/decisions/0018).
"""

import hashlib
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final

from gossip.core.envelope import Scope
from gossip.core.errors import RemoteError
from gossip.core.identity import verify_key_of
from gossip.core.ids import PeerId
from gossip.core.limits import TAG_BYTES

DOMAIN: Final = b"p2ptrain-ring-v1\x00"

CIRCLE: Final = 1 << 64
"""Places on a ring: 8 bytes of a hash, so that two of a thousand members share one once in 10^13 swarms."""

MAX_PLACES: Final = 1024
"""Peers whose places are remembered: four times the records of a peerstore, at 3 hashes each."""


def ring_count(degree: int) -> int:
    """Return how many rings there are. Each ring uses two of a node's places. An eighth of the places, counted twice,
    and from degree 4 on at least two, belong to no ring: a crowd may grind its way onto rings. The default degree of 8
    gives 3 rings and 2 free places."""
    return degree // 2 - max(degree // 8, degree > 3)


def place_of(scope: Scope, ring: int, peer: PeerId) -> int:
    """Return a peer's place on a ring, in 0..CIRCLE - 1."""
    named = DOMAIN + scope.swarm + scope.run + bytes([ring]) + peer.encode("ascii")
    return int.from_bytes(hashlib.blake2b(named, digest_size=32).digest()[:8], "big")


def members_by(gaps: int, count: int) -> int:
    """Return how many members a swarm has where so many gaps beside one of them add up to `gaps` of CIRCLE. Places are
    even on a circle, so that 2 R gaps of R rings give n within 1 / sqrt(2 R)."""
    return round((count - 1) * CIRCLE / max(1, gaps))


@lru_cache(maxsize=MAX_PLACES)  # base58 is slow, and the same few are needed every other second
def tag_of(peer: PeerId) -> bytes:
    """Return a peer's tag, its name in a graph. Names that are no peer id (of tests) are hashed."""
    try:
        return verify_key_of(peer)[:TAG_BYTES]
    except RemoteError:
        return hashlib.blake2b(peer.encode(), digest_size=TAG_BYTES).digest()


class Rings:
    """One node's places on all rings, and whom it belongs beside as far as it knows the others."""

    def __init__(self, me: PeerId, scope: Scope, degree: int) -> None:
        self.wanted: frozenset[PeerId] = frozenset()
        """Peers that we belong beside; none in particular while there is a place for everyone."""
        self._me = me
        self._scope = scope
        self._degree = degree
        self._rings = range(ring_count(degree))
        self._places: dict[PeerId, tuple[int, ...]] = {}
        self._nearest: list[tuple[int, int]] = []
        self._seen: frozenset[PeerId] = frozenset()

    @property
    def free_places(self) -> int:
        """How many neighbours there are beyond those of the rings."""
        return self._degree - 2 * len(self._rings)

    @property
    def members(self) -> int:
        """How many members the swarm has, ourselves included: at least those that we know, and as many as the gaps
        beside us say."""
        known = len(self._seen) + 1
        gaps = sum(map(sum, self._nearest))
        return max(known, members_by(gaps, 2 * len(self._nearest))) if gaps else known

    def see(self, members: Iterable[PeerId]) -> None:
        """Draw the rings for these members and us."""
        seen = frozenset(members) - {self._me}
        if seen == self._seen:
            return
        self._seen, self._nearest = seen, []
        if len(seen) < self._degree:
            self.wanted = frozenset()
            return
        mine, chosen = self._of(self._me), set()
        places = {peer: self._of(peer) for peer in sorted(seen)}
        for ring in self._rings:
            after = min(places, key=lambda peer: (places[peer][ring] - mine[ring]) % CIRCLE)
            before = min(places, key=lambda peer: (mine[ring] - places[peer][ring]) % CIRCLE)
            chosen |= {after, before}
            far = (places[after][ring] - mine[ring]) % CIRCLE, (mine[ring] - places[before][ring]) % CIRCLE
            self._nearest.append(far)
        # With exactly a place for everyone nobody is wanted; but the next one that comes may be.
        self.wanted = frozenset(chosen if len(seen) > self._degree else ())

    def wants(self, peer: PeerId) -> bool:
        """Return whether we belong beside `peer`, or would, if it is new to us."""
        if peer in self.wanted or not self._nearest or peer in self._seen:
            return peer in self.wanted
        mine, its = self._of(self._me), self._of(peer)
        return any(
            (its[ring] - mine[ring]) % CIRCLE < after or (mine[ring] - its[ring]) % CIRCLE < before
            for ring, (after, before) in enumerate(self._nearest)
        )

    def wanted_with(self, peer: PeerId) -> frozenset[PeerId]:
        """Return whom we would belong beside with one more member; the member that it displaces is not wanted any
        more."""
        if peer in self._seen:
            return self.wanted
        drawn = self.with_same_places()
        drawn.see(self._seen | {peer})
        return drawn.wanted

    def with_same_places(self) -> "Rings":
        """Return rings of the same node, on which nobody is seen yet; where a peer stands is remembered for both."""
        rings = Rings(self._me, self._scope, self._degree)
        rings._places = self._places
        return rings

    def add(self, peer: PeerId) -> None:
        """Draw the rings with one more member."""
        self.see(self._seen | {peer})

    def beside(self, peer: PeerId, members: Iterable[PeerId], depth: int) -> list[PeerId]:
        """Return those of these members that are nearest to `peer` on each ring, `depth` to each side: it needs these
        first."""
        its, places = self._of(peer), {each: self._of(each) for each in members}
        found: dict[PeerId, None] = {}
        for ring in self._rings:
            ahead = sorted(places, key=lambda each: (places[each][ring] - its[ring]) % CIRCLE)
            found.update(dict.fromkeys([*ahead[:depth], *ahead[-depth:]]))
        return list(found)

    def _of(self, peer: PeerId) -> tuple[int, ...]:
        places = self._places.pop(peer, None) or tuple(place_of(self._scope, ring, peer) for ring in self._rings)
        self._places[peer] = places
        while len(self._places) > MAX_PLACES:
            del self._places[next(iter(self._places))]
        return places


def agreed_edges(claims: Mapping[bytes, Iterable[bytes]]) -> dict[bytes, frozenset[bytes]]:
    """Return the graph of edges that both ends claim: nobody can claim an edge to an honest node that denies it."""
    rows = {tag: frozenset(beside) for tag, beside in claims.items()}
    return {tag: frozenset(other for other in row if tag in rows.get(other, ())) - {tag} for tag, row in rows.items()}
