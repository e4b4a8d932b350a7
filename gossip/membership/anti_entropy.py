"""How what admins signed spreads among members: what is sent, what is asked for, what is believed. No I/O.

Two members that meet, and then at every heartbeat, send each other digests of what they know; a member that sees a
difference pulls. New items are sent to all connected members at once, so that a revocation is everywhere in as many
steps as the swarm's diameter. A member that sends or answers something invalid is charged; what differs because one of
the two has an older manifest is nobody's fault.

A member can make new items without end: an invite without a number of uses, redeemed by key after key, each earlier
than the one before. So new items are limited for each member that brings them. Revocations, which only admins can make,
are not limited.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Final

from gossip.core.errors import Reason, RemoteError
from gossip.core.ids import Digest, PeerId
from gossip.core.member_messages import Known, MembershipRequest
from gossip.core.membership_limits import MAX_REDEMPTIONS, MAX_REVOCATIONS
from gossip.core.rate_limit import KeyedTokenBucket
from gossip.membership.admission import Applied, MembershipAdmission
from gossip.membership.invite import Role
from gossip.membership.manifest import parse_manifest
from gossip.membership.manifest_chain import pack_manifests
from gossip.membership.placement import placement_of
from gossip.membership.roster import parse_item
from gossip.membership.roster_index import RosterIndex, regions_of, role_of, why_out
from gossip.membership.roster_sync import paged, parse_page

NEWS_BURST: Final = 64
NEWS_PER_S: Final = 8.0
"""New certificates accepted per second of those that a member sends unasked: twice what a member sends. Each costs 0.2
ms; fifty newcomers at once are within it, and what is beyond it differs by digest and is pulled."""

TOLD_BURST: Final = 32
TOLD_PER_S: Final = 4.0
"""Certificates that we send unasked per second: less than others accept, so that nobody is charged for passing things
on."""

PULLED_BURST: Final = MAX_REDEMPTIONS + MAX_REVOCATIONS
PULLED_PER_S: Final = 32.0
"""New items accepted per second when we pull from a member: a whole roster once, then 6 ms of each second."""

PULLS_BURST: Final = 8
PULLS_PER_S: Final = 0.2
"""Pulls per second from one member: it can always claim that something differs."""

MAX_REFUSED: Final = 1024
"""Newest manifests that were refused, by who offered them and their digest, so that they are not requested again at
every heartbeat. As many as four full peerstores: after a fork all members may be on the other side. 200 kB. By the
digest alone one member could keep a manifest from us that it has not made: it offers it, and serves another."""


def is_item(signed: bytes) -> bool:
    """Return whether these bytes are a roster's item, and not manifests."""
    return signed[:2] in (b"\x92\x00", b"\x92\x01")


def _is_revocation(item: bytes) -> bool:
    return item[:2] == b"\x92\x01"


class AntiEntropy:
    """What one member sends and believes. Methods that judge a peer's bytes raise RemoteError, or return it in
    `Applied.error`."""

    def __init__(self, admission: MembershipAdmission) -> None:
        self.admission = admission
        self._roster_index: RosterIndex | None = None
        self._news = KeyedTokenBucket(burst=NEWS_BURST, per_s=NEWS_PER_S)
        self._told = KeyedTokenBucket(burst=TOLD_BURST, per_s=TOLD_PER_S)
        self._pulled = KeyedTokenBucket(burst=PULLED_BURST, per_s=PULLED_PER_S)
        self._pulls = KeyedTokenBucket(burst=PULLS_BURST, per_s=PULLS_PER_S)
        self._refused: OrderedDict[tuple[PeerId, Digest], None] = OrderedDict()

    @property
    def roster_index(self) -> RosterIndex:
        """The index of the present roster."""
        if self._roster_index is None:
            self._roster_index = RosterIndex(self.admission.roster)
        return self._roster_index

    def changed(self, new: Sequence[bytes] = ()) -> None:
        """Note that the roster has changed. `new`: the added items, if there are any; others may have been displaced by
        them."""
        if self._roster_index is None or len(self._roster_index) + len(new) != len(self.admission.roster):
            self._roster_index = None
            return
        for item in new:
            self._roster_index.add(item)

    def known(self) -> Known:
        """The digests of what we know."""
        newest = self.admission.chain.newest
        return Known(roster=self.roster_index.digest, version=newest.version, manifest=newest.digest)

    def role_of(self, peer: PeerId) -> Role | None:
        """Return what a peer may do by the roster, or by what it showed us; None when it is no member."""
        return role_of(self.admission, self.roster_index, peer)

    def regions_of(self, peer: PeerId) -> frozenset[str]:
        """Return the regions that a peer's certificates bind it to; none where it may be of any."""
        return regions_of(self.admission, self.roster_index, peer)

    def placement_of(self, peer: PeerId) -> Digest | None:
        """Return what a peer is drawn into groups by; None where it has no grant of its own."""
        return placement_of(self.admission, self.roster_index, peer)

    def why_out(self, peer: PeerId) -> RemoteError | None:
        """Return why a known peer is a former member; None for a member, and for an unknown peer."""
        return why_out(self.admission, self.roster_index, peer)

    # -- telling

    def news_page(self, items: Iterable[bytes], now: float) -> bytes:
        """Return as many new items as one page and our limit allow, revocations first; b"" for none."""
        chosen = sorted(dict.fromkeys(items), key=_is_revocation, reverse=True)
        return next(paged(each for each in chosen if _is_revocation(each) or self._told.take("", now)), b"")

    def manifest_above(self, version: int) -> bytes:
        """Return the oldest manifest above `version` that a chain needs; b"": none."""
        return next((each.raw for each in self.admission.chain.spine() if each.version > version), b"")

    # -- told

    def on_told(self, peer: PeerId, told: MembershipRequest, now: float) -> Applied:
        """Add a member's new items. Raises RemoteError on a malformed page."""
        items = parse_page(told.page) if told.page else ()
        fresh = [item for item in items if item not in self.roster_index]
        counted = [item for item in fresh if _is_revocation(item) or self._news.take(peer, now)]
        applied = self._take(counted, told.known)
        if len(counted) == len(fresh) or applied.error is not None:
            return applied
        flood = RemoteError(Reason.FLOODED, "more new members than anybody has")
        return Applied(new=applied.new, cut=applied.cut, error=flood)

    def wants_of(self, peer: PeerId, theirs: Known, now: float) -> bool:
        """Return whether to pull now from a member that knows this."""
        ours = self.known()
        differs = theirs.roster != ours.roster or self.wants_manifest(peer, theirs)
        return differs and self._pulls.take(peer, now)

    def wants_manifest(self, peer: PeerId, theirs: Known) -> bool:
        """Return whether a member has a manifest that we should see: a newer one, or another of our number."""
        newest = self.admission.chain.newest
        if (peer, theirs.manifest) in self._refused:
            return False
        return theirs.version > newest.version or (
            theirs.version == newest.version and theirs.manifest != newest.digest
        )

    def on_page(self, peer: PeerId, page: bytes, theirs: Known, now: float) -> Applied:
        """Add a page that we asked for. Raises RemoteError on a malformed one, and FLOODED for the rest of this pull
        when there were more new items than rosters have."""
        fresh = [item for item in parse_page(page) if item not in self.roster_index]
        counted = [item for item in fresh if _is_revocation(item) or self._pulled.take(peer, now)]
        applied = self._take(counted, theirs)
        if len(counted) < len(fresh) and applied.error is None:
            flood = RemoteError(Reason.FLOODED, "its roster is new again and again")
            return Applied(new=applied.new, cut=applied.cut, error=flood)
        return applied

    def on_manifest(self, peer: PeerId, raw: bytes, theirs: Known) -> Applied:
        """Add a manifest that we asked for. Raises RemoteError on a malformed one."""
        return self.submit_manifests(pack_manifests((parse_manifest(raw),)), (peer, theirs.manifest))

    def submit_manifests(self, dump: bytes, offered: tuple[PeerId, Digest] | None = None) -> Applied:
        """Add manifests of our own admin, or (`offered`: who it is, and its newest) of a member."""
        applied = self.admission.apply_manifests(dump)
        if applied.new:
            self.changed()
        if applied.error is not None and offered is not None:
            self._refused[offered] = None
            if len(self._refused) > MAX_REFUSED:
                self._refused.popitem(last=False)
        return applied

    def submit_items(self, items: Iterable[bytes]) -> Applied:
        """Add items of our own admin."""
        applied = self.admission.apply(items)
        if applied.new:
            self.changed(applied.new)
        return applied

    def _take(self, items: Iterable[bytes], theirs: Known) -> Applied:
        """Add items, except those that other admins may have signed under another manifest: these wait until we have
        it."""
        if theirs.manifest != self.admission.chain.newest.digest:
            items = [item for item in items if self._trusts(item)]
        return self.submit_items(items)

    def _trusts(self, item: bytes) -> bool:
        try:
            return self.admission.roster.trusts(parse_item(item))
        except RemoteError:
            return True  # to be refused for what it is
