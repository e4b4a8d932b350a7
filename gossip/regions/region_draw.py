"""What every member draws alike, with no word spoken: which regions are beside which, and who publishes for a region.

Regions stand on rings, as members do (discovery/topology.py), so that a member hears of few, however many there are.
Who publishes a region's model is drawn for each round. It is drawn from the members that one knows, and views differ by
those who have just come or gone: so a few more are believed to be drawn than publish.
"""

import hashlib
from collections.abc import Iterable
from typing import Final

from gossip.core.envelope import Scope
from gossip.core.ids import Digest, PeerId
from gossip.discovery.topology import CIRCLE, place_of

DRAW_DOMAIN: Final = b"p2ptrain-region-v1\x00"

REGION_RINGS: Final = 2
MAX_ADJACENT: Final = 2 * REGION_RINGS
"""Regions whose models a member hears, at most: two on each of two rings. With a fifth region a liar's can be left out
of the mean, and each holds as many models as four regions publish. Chosen."""


def adjacent(own: str, regions: Iterable[str], scope: Scope) -> frozenset[str]:
    """Return the regions beside our own, of all that are known: all others while they are few."""
    others = frozenset(regions) - {own}
    if len(others) <= MAX_ADJACENT:
        return others
    chosen: set[str] = set()
    for ring in range(REGION_RINGS):
        mine, places = _place(scope, ring, own), {other: _place(scope, ring, other) for other in sorted(others)}
        chosen.add(min(places, key=lambda each: (places[each] - mine) % CIRCLE))
        chosen.add(min(places, key=lambda each: (mine - places[each]) % CIRCLE))
    return frozenset(chosen)


def in_draw(scope: Scope, region: str, round: int, members: Iterable[PeerId]) -> list[PeerId]:
    """Return the members of a region in the order in which they are to publish its model of a round."""
    seed = DRAW_DOMAIN + scope.swarm + scope.run + region.encode("ascii") + b"\x00" + round.to_bytes(8, "big")
    return sorted(members, key=lambda peer: _drawn(seed, peer))


def rank_to_fetch(address: Digest, me: PeerId, members: Iterable[PeerId]) -> int:
    """Return how many other members of our region are to fetch this blob from another region before us."""
    mine = _drawn(address, me)
    return sum(_drawn(address, peer) < mine for peer in members if peer != me)


def nearest_after(me: PeerId, members: Iterable[PeerId], scope: Scope) -> PeerId | None:
    """Return the first of another region's members after us on the first ring of members; None where there is none."""
    mine, places = place_of(scope, 0, me), {peer: place_of(scope, 0, peer) for peer in members}
    return min(places, key=lambda peer: ((places[peer] - mine) % CIRCLE, peer), default=None)


def _place(scope: Scope, ring: int, region: str) -> int:
    return place_of(scope, ring, PeerId(f"region {region}"))


def _drawn(seed: bytes, peer: PeerId) -> bytes:
    return hashlib.blake2b(seed + peer.encode("ascii"), digest_size=16).digest()
