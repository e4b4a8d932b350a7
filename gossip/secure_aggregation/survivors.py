"""Whose vectors are summed: decided from what members have signed, the same way by who proposes and by who agrees.

Masks vanish from the sum of a set of members if all of them masked for each other, from the same statements, and every
owner of a part holds their vectors. Each of these conditions is one of two members, so a set is good when no two of its
members conflict. A member without which fewer conflicts are left is dropped, until none is.

A mask with a member outside the set stays in the sum, until that one's key is found. So a set has nobody who masked for
one whose key cannot be: a liar would name a member that never was there, and nothing could be opened.
"""

from collections.abc import Callable, Collection, Mapping
from itertools import combinations

from gossip.core.digests import digest_of
from gossip.core.ids import Digest
from gossip.core.wire import pack

View = Mapping[int, Digest]
"""Digests of others' statements by the place of the member, as one member has them."""

CanFind = Callable[[int, Digest, Collection[int]], bool]
"""Whether the mask key of a member outside a set can be found by that set's members: its place, the digest of the
shares that it dealt, the set."""


def masks_fit(first: int, second: int, masked: Mapping[int, View]) -> bool:
    """Return whether two members masked for each other, and from the same statements of everybody."""
    one, other = masked[first], masked[second]
    return second in one and first in other and all(one[place] == other[place] for place in one.keys() & other.keys())


def are_survivors(members: Collection[int], masked: Mapping[int, View]) -> bool:
    """Return whether the masks of these members vanish from their sum."""
    there = all(member in masked for member in members)
    return there and all(masks_fit(first, second, masked) for first, second in combinations(sorted(members), 2))


def lasting_masks(member: int, members: Collection[int], masked: Mapping[int, View], can_find: CanFind) -> int:
    """Return for how many outside the set `members` one of it masked whose keys cannot be found."""
    view = masked[member]
    return sum(not can_find(place, view[place], members) for place in view.keys() - set(members))


def choose_survivors(
    masked: Mapping[int, View], held: Mapping[int, View], vectors: View, threshold: int, can_find: CanFind
) -> frozenset[int] | None:
    """Return a set of `threshold` members or more that are there, of whom none conflicts with another, and whose masks
    vanish; None where there is none. `masked`, `held`: the views of those that have said so; `vectors`: the digests of
    what they said of their masked vectors."""
    members = set(masked) & set(held) & set(vectors)

    def conflict(first: int, second: int) -> bool:
        holds = held[first].get(second) == vectors[second] and held[second].get(first) == vectors[first]
        return not holds or not masks_fit(first, second, masked)

    conflicts: dict[int, set[int]] = {member: set() for member in members}
    for first, second in combinations(sorted(members), 2):
        if conflict(first, second):
            conflicts[first].add(second)
            conflicts[second].add(first)
    while any(conflicts.values()):
        worst = max(conflicts, key=lambda member: (len(conflicts[member]), member))
        for other in conflicts.pop(worst):
            conflicts[other].discard(worst)
    chosen = set(conflicts)
    while len(chosen) >= threshold:
        lasting = {member: lasting_masks(member, chosen, masked, can_find) for member in chosen}
        if not any(lasting.values()):
            return frozenset(chosen)
        chosen.remove(max(chosen, key=lambda member: (lasting[member], member)))
    return None


def agreement(exchange: Digest, survivors: Collection[int], vectors: View) -> Digest:
    """Return what members sign: a digest of the exchange, the survivors, and what each said of its masked vector."""
    places = sorted(survivors)
    return digest_of(pack(("agreed", exchange, places, [vectors[place] for place in places])))
