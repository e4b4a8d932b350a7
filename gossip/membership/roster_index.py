"""A snapshot of a roster, arranged for the questions that members ask all the time: which items differ, and what a peer
that we have never met may do."""

from bisect import insort
from collections import defaultdict
from collections.abc import Collection

from gossip.core.digests import digest_of
from gossip.core.errors import RemoteError
from gossip.core.ids import Digest, PeerId
from gossip.core.membership_limits import BUCKET_BYTES, BUCKETS
from gossip.membership.admission import MembershipAdmission
from gossip.membership.certificate import Certificate
from gossip.membership.invite import Role
from gossip.membership.roster import Roster, parse_item
from gossip.membership.roster_sync import bucket_of, buckets_of, paged


class RosterIndex:
    """Built anew after a change: 8 us for each item. An item that displaces none is only added."""

    def __init__(self, roster: Roster) -> None:
        self._parts: list[list[bytes]] = [[] for _ in range(BUCKETS)]
        self._digests: set[Digest] = set()
        for item in roster.items():
            digest = digest_of(item)
            self._digests.add(digest)
            self._parts[digest[0]].append(item)
        self._paged: tuple[frozenset[int], list[bytes]] = frozenset(), []
        self.buckets = buckets_of(self._digests)
        self.digest = digest_of(self.buckets)
        self._by_peer: defaultdict[PeerId, list[Certificate]] = defaultdict(list)
        for certificate in roster.certificates:
            self._by_peer[certificate.peer].append(certificate)

    def __len__(self) -> int:
        return len(self._digests)

    def add(self, item: bytes) -> None:
        """Add one more item that has displaced none."""
        digest = digest_of(item)
        self._digests.add(digest)
        part = self._parts[digest[0]]
        insort(part, item)
        self._paged = frozenset(), []
        at = digest[0] * BUCKET_BYTES
        self.buckets = self.buckets[:at] + bucket_of(map(digest_of, part)) + self.buckets[at + BUCKET_BYTES :]
        self.digest = digest_of(self.buckets)
        parsed = parse_item(item)
        if isinstance(parsed, Certificate):
            insort(self._by_peer[parsed.peer], parsed, key=lambda each: each.order)

    def __contains__(self, item: bytes) -> bool:
        return digest_of(item) in self._digests

    def page(self, parts: Collection[int], number: int) -> bytes:
        """Return a page of the items of some parts; b"" beyond the last one."""
        asked = frozenset(parts)
        if asked != self._paged[0]:
            self._paged = asked, list(paged(item for part in sorted(asked) for item in self._parts[part]))
        pages = self._paged[1]
        return pages[number] if number < len(pages) else b""

    def certificates_of(self, peer: PeerId) -> list[Certificate]:
        """Return the certificates in which this key has the membership."""
        return self._by_peer.get(peer, [])


def role_of(admission: MembershipAdmission, roster_index: RosterIndex, peer: PeerId) -> Role | None:
    """Return what a peer may do by the roster, or by what it showed us; None when nothing known makes it a member. Of
    two memberships a trainer's counts."""
    known = roster_index.certificates_of(peer)
    roles = {each.role for each in known if admission.why_out(peer, each) is None}
    if not roles:
        return admission.role_of(peer)
    return Role.TRAINER if Role.TRAINER in roles else min(roles)


def regions_of(admission: MembershipAdmission, roster_index: RosterIndex, peer: PeerId) -> frozenset[str]:
    """Return the regions that a peer's certificates bind it to, by the roster and by what it showed us; none where it
    may be of any. With two memberships it may be of either region, and of any where one names none."""
    shown = admission.shown_by(peer)
    known = [*roster_index.certificates_of(peer), *([] if shown is None else [shown])]
    held = {each.raw: each for each in known if each.role is Role.TRAINER}.values()
    if not any(each.region for each in held):  # as in most swarms: nothing need be checked
        return frozenset()
    regions = frozenset(each.region for each in held if admission.why_out(peer, each) is None)
    return frozenset() if "" in regions else regions


def why_out(admission: MembershipAdmission, roster_index: RosterIndex, peer: PeerId) -> RemoteError | None:
    """Return why a known peer is a former member; None for a member, and for an unknown peer."""
    if role_of(admission, roster_index, peer) is not None:
        return None
    known = roster_index.certificates_of(peer)
    if known:
        return admission.why_out(peer, known[0])
    gone = admission.roster.replaced(peer) or admission.roster.revoked_peer(peer) is not None
    return admission.why_out(peer) if gone else None
