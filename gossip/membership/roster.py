"""What a member knows of all members: certificates that were shown, and revocations.

A state-based CRDT: the state after any items in any order is a function of their set. Certificates have one total order
(`Certificate.order`). Of each membership the first is kept, of each grant as many memberships as it has uses, of all
`MAX_REDEMPTIONS`. The kept ones are always the first in this order, so what was once displaced never comes back.
Revocations have places of their own: one for each admin and target, the earliest of `MAX_REVOCATIONS`. Only earlier
revocations displace them.

Only what a current admin signed is held: `restrict` drops the rest when the admins change.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator
from typing import Final, TypeAlias

from gossip.core.errors import Reason, RemoteError
from gossip.core.ids import Digest, PeerId, SwarmId
from gossip.core.membership_limits import MAX_CERTIFICATE_BYTES, MAX_ITEM_BYTES, MAX_REDEMPTIONS, MAX_REVOCATIONS
from gossip.core.wire import pack
from gossip.membership.certificate import Certificate, Key, parse_certificate
from gossip.membership.revocation import Revocation, Target, What, parse_revocation
from gossip.membership.signed import unpack_exact

Item: TypeAlias = Certificate | Revocation
_CERTIFICATE: Final = 0
_REVOCATION: Final = 1


class Roster:
    """The known members of one swarm, under one set of admins."""

    def __init__(
        self,
        swarm: SwarmId,
        admins: Collection[bytes],
        *,
        most: int = MAX_REDEMPTIONS,
        most_revocations: int = MAX_REVOCATIONS,
    ) -> None:
        self.swarm = swarm
        self._admins = frozenset(admins)
        self._most = most
        self._most_revocations = most_revocations
        self._begin()

    def add(self, item: bytes) -> bool:
        """Add an item that a member sent; return whether it changed anything. Raises RemoteError: OVERSIZE, MALFORMED,
        FORGED (a wrong signature, or a signer who is no known admin), WRONG_SWARM."""
        return self.put(parse_item(item))

    def put(self, item: Item) -> bool:
        """Add a parsed item, as `add` does."""
        self._check_source(item)
        return self._put_revocation(item) if isinstance(item, Revocation) else self._put_certificate(item)

    def merge(self, other: "Roster") -> bool:
        """Add all items of another roster; return whether that changed anything. Raises RemoteError as `add` does."""
        return sum(map(self.put, other.all())) > 0

    def restrict(self, admins: Collection[bytes]) -> None:
        """Go on under other admins: drop what former admins signed, revocations included."""
        kept = self.all()
        self._admins = frozenset(admins)
        self._begin()
        for item in kept:
            if self.trusts(item):
                self.put(item)

    def trusts(self, item: Item) -> bool:
        """Return whether a current admin signed it."""
        return _admin_of(item) in self._admins

    @property
    def certificates(self) -> tuple[Certificate, ...]:
        """All certificates held, in their order."""
        return tuple(sorted(self._certificates.values(), key=lambda each: each.order))

    @property
    def revocations(self) -> tuple[Revocation, ...]:
        """All revocations held, in their order."""
        return tuple(sorted(self._revocations.values(), key=lambda each: each.order))

    def items(self) -> Iterator[bytes]:
        """Yield everything as others may `add` it, in the order of their bytes."""
        yield from sorted(map(pack_item, self.all()))

    def all(self) -> list[Item]:
        """Return everything that is held, in no order."""
        items: list[Item] = list(self._revocations.values())
        return items + list(self._certificates.values())

    def held(self, key: Key) -> Certificate | None:
        """Return the certificate of a membership; None when there is none."""
        return self._certificates.get(key)

    def taken(self, grant: Digest) -> int:
        """Return how many memberships of a grant are held."""
        return len(self._by_grant.get(grant, ()))

    @property
    def full(self) -> bool:
        """Whether one more membership can only replace another one."""
        return len(self._certificates) >= self._most

    def replaced(self, peer: PeerId) -> bool:
        """Return whether this key has named its successor."""
        return peer in self._replaced

    def revoked(self, certificate: Certificate) -> Revocation | None:
        """Return the earliest revocation of any of a membership's keys, or of its grant."""
        targets: list[Target] = [(What.PEER, each) for each in certificate.lineage]
        targets.append((What.GRANT, certificate.grant.id))
        found = [each for target in targets for each in self._naming(target)]
        return min(found, key=lambda each: each.order, default=None)

    def revoked_peer(self, peer: PeerId) -> Revocation | None:
        """Return the earliest revocation of exactly this key."""
        found = self._naming((What.PEER, peer))
        return min(found, key=lambda each: each.order, default=None)

    def revoked_grant(self, grant: Digest) -> Revocation | None:
        """Return the earliest revocation of this grant."""
        return min(self._naming((What.GRANT, grant)), key=lambda each: each.order, default=None)

    def __len__(self) -> int:
        return len(self._certificates) + len(self._revocations)

    def _begin(self) -> None:
        self._by_grant: defaultdict[Digest, dict[Key, Certificate]] = defaultdict(dict)
        self._certificates: dict[Key, Certificate] = {}
        self._replaced: Counter[PeerId] = Counter()
        self._revocations: dict[tuple[Target, bytes], Revocation] = {}
        self._out: defaultdict[Target, set[bytes]] = defaultdict(set)

    def _check_source(self, item: Item) -> None:
        swarm = item.swarm if isinstance(item, Revocation) else item.grant.swarm
        if swarm != self.swarm:
            raise RemoteError(Reason.WRONG_SWARM, "of another swarm")
        if not self.trusts(item):
            raise RemoteError(Reason.FORGED, "signed by nobody who is an admin")

    def _naming(self, target: Target) -> list[Revocation]:
        return [self._revocations[target, admin] for admin in self._out.get(target, ())]

    def _put_revocation(self, item: Revocation) -> bool:
        place = item.names, item.admin
        held = self._revocations.get(place)
        if held is not None and held.order <= item.order:
            return False
        self._revocations[place] = item
        self._out[item.names].add(item.admin)
        if len(self._revocations) <= self._most_revocations:
            return True
        last = max(self._revocations.values(), key=lambda each: each.order)
        del self._revocations[last.names, last.admin]
        self._out[last.names].discard(last.admin)
        if not self._out[last.names]:
            del self._out[last.names]
        return last is not item

    def _put_certificate(self, item: Certificate) -> bool:
        held = self._certificates.get(item.key)
        if held is not None:
            if held.order <= item.order:
                return False
            self._drop(held)
        self._certificates[item.key] = self._by_grant[item.grant.id][item.key] = item
        self._replaced.update(item.lineage[:-1])
        self._trim(item)
        return self._certificates.get(item.key) is item

    def _trim(self, item: Certificate) -> None:
        of_grant = self._by_grant[item.grant.id]
        if len(of_grant) > item.grant.capacity:
            self._drop(max(of_grant.values(), key=lambda each: each.order))
        if len(self._certificates) > self._most:
            self._drop(max(self._certificates.values(), key=lambda each: each.order))

    def _drop(self, item: Certificate) -> None:
        del self._certificates[item.key]
        del self._by_grant[item.grant.id][item.key]
        if not self._by_grant[item.grant.id]:
            del self._by_grant[item.grant.id]
        for peer in item.lineage[:-1]:
            self._replaced[peer] -= 1
            if not self._replaced[peer]:
                del self._replaced[peer]


def pack_item(item: Item) -> bytes:
    """Pack an item for `parse_item`: [kind: uint, bin]."""
    return pack((_REVOCATION if isinstance(item, Revocation) else _CERTIFICATE, item.raw))


def parse_item(data: bytes) -> Item:
    """Parse a certificate or revocation and check its signatures. Raises RemoteError(OVERSIZE | MALFORMED | FORGED)."""
    fields = unpack_exact(data, MAX_ITEM_BYTES)
    kind, raw = fields.integer(_REVOCATION), fields.binary(MAX_CERTIFICATE_BYTES)
    fields.end()
    return parse_revocation(raw) if kind == _REVOCATION else parse_certificate(raw)


def _admin_of(item: Item) -> bytes:
    return item.admin if isinstance(item, Revocation) else item.grant.admin
