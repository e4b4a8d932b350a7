"""Who is admitted: the transports' `Admission`, from a manifest chain, a roster and a clock.

Admission decides and keeps no connection: after every change of what is known, `cut` names the peers to be disconnected
now.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Final

from gossip.core.errors import AnsweredError, Reason, RemoteError
from gossip.core.ids import PeerId
from gossip.core.membership_limits import MAX_PIECES, MAX_REMEMBERED
from gossip.core.rate_limit import KeyedTokenBucket
from gossip.membership.certificate import Certificate, SwarmClaim, parse_credentials
from gossip.membership.check_membership import check_membership, members
from gossip.membership.invite import Role
from gossip.membership.manifest_chain import ManifestChain, pack_manifests
from gossip.membership.refusal import (
    ASK,
    EndedError,
    Refusal,
    claim_words,
    ended_advice,
    ended_words,
    names,
    parse_refusal,
    refusal_for,
)
from gossip.membership.revocation import Revocation
from gossip.membership.roster import Roster, pack_item
from gossip.membership.visit import answer_visit, check_visit, is_visit, parse_visit, refusal_for_visit

DISPLACING_BURST: Final = 16
DISPLACING_PER_S: Final = 1.0
"""Newcomers per second to a full roster, where each displaces another member or is displaced itself: it is counted
anew, in 35 ms. The holder of an invite without a number of uses can redeem it for ever, each time earlier than the
last."""

PIECES_BURST: Final = 2 * MAX_PIECES
PIECES_PER_S: Final = 16.0
"""Pieces of the manifests sent per second for one invite: the largest chain's twice, then 64 kB a second. Chosen: a
quarter of the handshakes that a member begins in a second, so that an attacker who floods with an invite that others
share leaves them a turn."""

EXPLAINED_BURST: Final = 64
EXPLAINED_PER_S: Final = 1.0
"""Refusals per second that carry manifests. Each is at most `MAX_REFUSAL_BYTES`, and under 2 kB in an ordinary swarm; a
former admin can make members without end who ask. Chosen: a large swarm's members, cut at once, each hear it of some
member within their first dials."""


SHOWN_BURST: Final = 16
SHOWN_PER_S: Final = 1.0
"""Refusals per second whose manifests are read. 32 KiB of signatures that hold take 46 ms, ten times the handshake in
which they come; one true refusal is enough. Chosen."""


@dataclass(frozen=True, kw_only=True)
class Applied:
    """The result of items or manifests: those that were `new` and are to be passed on, the peers to `cut` off now, and
    the first error, for which the sender is charged."""

    new: tuple[bytes, ...]
    cut: frozenset[PeerId]
    error: RemoteError | None


class MembershipAdmission:
    """Admission to one swarm.

    `now` returns unix seconds. `learned` is called with each roster item that `admit` adds, to pass on; it may be set
    later. So may `refused`, which is called with each peer that refuses us and says why: with True when an admin signed
    the reason, with False when the peer only says so; and `take_manifests`, which is called with the manifests that
    such a peer sends, any bytes, and adds them by `apply_manifests`. Raises EndedError when our own membership is not
    valid: better at the start than in every handshake.
    """

    def __init__(
        self,
        *,
        peer: PeerId,
        certificate: Certificate | None,
        chain: ManifestChain,
        roster: Roster,
        now: Callable[[], float],
        learned: Callable[[bytes], None] | None = None,
    ) -> None:
        self.chain = chain
        self.roster = roster
        self._now = now
        self.learned = learned
        self.refused: Callable[[PeerId, Refusal, bool], None] | None = None
        self.take_manifests: Callable[[bytes], object] = self.apply_manifests
        self._peer = peer
        self._shown: Certificate | SwarmClaim = SwarmClaim(swarm=chain.swarm) if certificate is None else certificate
        self._admitted: dict[PeerId, Certificate | SwarmClaim] = {}
        self._displacing = KeyedTokenBucket(burst=DISPLACING_BURST, per_s=DISPLACING_PER_S)
        self._pieces = KeyedTokenBucket(burst=PIECES_BURST, per_s=PIECES_PER_S)
        self._explained = KeyedTokenBucket(burst=EXPLAINED_BURST, per_s=EXPLAINED_PER_S)
        self._read = KeyedTokenBucket(burst=SHOWN_BURST, per_s=SHOWN_PER_S)
        roster.restrict(chain.newest.terms.admins)
        try:
            check_membership(peer, self._shown, chain, roster, now())
        except RemoteError as error:
            raise EndedError(self._ended_by(error), ended_advice(self._shown, error, now())) from error
        if certificate is not None:
            roster.put(certificate)

    def credentials(self) -> bytes:
        """Return the bytes that prove our membership."""
        return self._shown.raw

    def admit(self, peer: PeerId, credentials: bytes) -> None:
        """Admit or refuse a peer that has proved its key, by any bytes. Raises RemoteError with the reason, and
        AnsweredError for a peer that asks by its invite what the swarm is."""
        if is_visit(credentials):
            raise AnsweredError(self._answer(peer, credentials))
        shown, now = self._parse(credentials), self._now()
        check_membership(peer, shown, self.chain, self.roster, now)
        if isinstance(shown, Certificate):
            self._record(shown, now)
        self._admitted.pop(peer, None)  # the latest is last
        self._admitted[peer] = shown
        if len(self._admitted) > MAX_REMEMBERED:
            del self._admitted[next(iter(self._admitted))]

    def explain(self, peer: PeerId, credentials: bytes, error: RemoteError) -> bytes:
        """Return what a peer is told that `admit` refused with `error`; b"" for a peer that no admin ever granted
        anything."""
        try:
            if is_visit(credentials):
                told = refusal_for_visit(peer, parse_visit(credentials), self.roster, self.chain, error)
            else:
                told = refusal_for(peer, self._parse(credentials), self.roster, self.chain, error)
        except RemoteError:
            return b""
        if told is None or (told.manifests and not self._explained.take("", self._now())):
            return b""
        return told.pack()

    def heard(self, peer: PeerId, said: bytes) -> str:
        """Process what a peer that refuses us said, any bytes; return it in words for the operator. A revocation of us
        that an admin signed is kept and passed on, and so are manifests that enough admins signed; everything else is
        only the peer's claim."""
        try:
            refusal = parse_refusal(said)
        except RemoteError:
            return "it does not take us for a member"
        revocation = refusal.revocation
        signed = revocation is not None and self._is_of_us(revocation)
        if revocation is not None and signed and self.roster.put(revocation) and self.learned is not None:
            self.learned(pack_item(revocation))
        if refusal.manifests and self._read.take("", self._now()):
            self.take_manifests(refusal.manifests)
            signed = self.ended() is not None
        if self.refused is not None:
            self.refused(peer, refusal, signed)
        ended = self.ended()
        if signed and ended is not None:
            return f"it does not take us for a member: {ended}"
        return f"it does not take us for a member, and says that {claim_words(refusal.reason)}"

    def ended(self) -> str | None:
        """Return why we are a former member, as far as we know ourselves; None while we are a member."""
        error = self.why_out(self._peer, self.own)
        return None if error is None else self._ended_by(error)

    def advice(self) -> str:
        """Return what our owner can do about what `ended` says."""
        error = self.why_out(self._peer, self.own)
        return ASK if error is None else ended_advice(self._shown, error, self._now())

    def why_out(self, peer: PeerId, shown: Certificate | None = None) -> RemoteError | None:
        """Return why a peer is no member by what it showed, or by a certificate of it that we know; None when it is
        one."""
        held: Certificate | SwarmClaim = shown or self._admitted.get(peer, SwarmClaim(swarm=self.chain.swarm))
        try:
            check_membership(peer, held, self.chain, self.roster, self._now())
        except RemoteError as error:
            return error
        return None

    @property
    def own(self) -> Certificate | None:
        """Return our own certificate, where we have one."""
        return self._shown if isinstance(self._shown, Certificate) else None

    def role_of(self, peer: PeerId) -> Role | None:
        """Return what an admitted peer may do; None for one that is no member, or a former one."""
        shown = self._admitted.get(peer, SwarmClaim(swarm=self.chain.swarm))
        try:
            return check_membership(peer, shown, self.chain, self.roster, self._now())
        except RemoteError:
            return None

    def shown_by(self, peer: PeerId) -> Certificate | None:
        """Return the certificate that an admitted peer has shown; it may have ended since."""
        shown = self._admitted.get(peer)
        return shown if isinstance(shown, Certificate) else None

    def members_among(self, peers: Collection[PeerId]) -> frozenset[PeerId]:
        """Return those of these peers for which the roster has a valid certificate, connected or not."""
        known = (each for each in self.roster.certificates if each.peer in peers)
        return frozenset(each.peer for each in known if self.why_out(each.peer, each) is None)

    def require(self, peer: PeerId, *roles: Role) -> None:
        """Raise RemoteError(WRONG_ROLE | NO_MEMBER) unless the peer has one of these roles."""
        role = self.role_of(peer)
        if role is None:
            raise RemoteError(Reason.NO_MEMBER, "not a member")
        if role not in roles:
            raise RemoteError(Reason.WRONG_ROLE, f"a peer of role {role.value}")

    def predecessors(self, peer: PeerId) -> tuple[PeerId, ...]:
        """Return an admitted peer's earlier keys, by what it showed: no other member has proposed it as successor."""
        shown = self._admitted.get(peer)
        return shown.lineage[:-1] if isinstance(shown, Certificate) else ()

    def forget(self, peer: PeerId) -> None:
        """Forget a peer whose last connection is gone."""
        self._admitted.pop(peer, None)

    def apply(self, items: Iterable[bytes]) -> Applied:
        """Add a member's roster items: certificates and revocations. Raises nothing; see `Applied`."""
        new: list[bytes] = []
        error: RemoteError | None = None
        for item in items:
            try:
                if self.roster.add(item):
                    new.append(item)
            except RemoteError as refused:
                error = error or refused
        return Applied(new=tuple(new), cut=self.cut() if new else frozenset(), error=error)

    def apply_manifests(self, dump: bytes) -> Applied:
        """Add manifests of a member or of our own admin, in the format of `ManifestChain.dump` or `pack_manifests`."""
        before, error = self.chain.newest, None
        try:
            self.chain.extend(dump)
        except RemoteError as refused:
            error = refused
        newest = self.chain.newest
        if newest is before:
            return Applied(new=(), cut=frozenset(), error=error)
        self.roster.restrict(newest.terms.admins)
        return Applied(new=(pack_manifests(self.chain.spine()),), cut=self.cut(), error=error)

    def cut(self) -> frozenset[PeerId]:
        """Return and forget the admitted peers that are no longer members: revoked, displaced, or expired. Call it now
        and then, because of those that expire."""
        now = self._now()
        gone = frozenset(peer for peer, shown in self._admitted.items() if not self._holds(peer, shown, now))
        for peer in gone:
            del self._admitted[peer]
        return gone

    def _holds(self, peer: PeerId, shown: Certificate | SwarmClaim, now: float) -> bool:
        try:
            check_membership(peer, shown, self.chain, self.roster, now)
        except RemoteError:
            return False
        return True

    def _is_of_us(self, revocation: Revocation) -> bool:
        ours = revocation.swarm == self.chain.swarm and names(revocation, self._peer, self._shown)
        return ours and self.roster.trusts(revocation)

    def _ended_by(self, error: RemoteError) -> str:
        shown, roster = self._shown, self.roster
        found = roster.revoked(shown) if isinstance(shown, Certificate) else roster.revoked_peer(self._peer)
        return ended_words(shown, found if error.reason is Reason.REVOKED else None, error, self._now())

    def _answer(self, peer: PeerId, credentials: bytes) -> bytes:
        visit, now = parse_visit(credentials), self._now()
        check_visit(peer, visit, self.chain, self.roster, now)
        if not self._pieces.take(visit.invite.id.hex(), now):
            raise RemoteError(Reason.FLOODED, "the invite's holder asks more often than it can use")
        return answer_visit(visit, self.chain)

    def _parse(self, credentials: bytes) -> Certificate | SwarmClaim:
        """Parse what a peer shows. One that shows nothing is a stranger, which an open swarm admits."""
        return parse_credentials(credentials) if credentials else SwarmClaim(swarm=self.chain.swarm)

    def _record(self, shown: Certificate, now: float) -> None:
        most = self.chain.newest.terms.max_members
        if most and self.roster.held(shown.key) is None and members(self.roster, now) >= most:
            raise RemoteError(Reason.USED_UP, f"the swarm has its {most} members")
        new = self.roster.held(shown.key) is None
        if new and self.roster.full and not self._displacing.take("", now):
            raise RemoteError(Reason.USED_UP, "the roster is full, and too many want a place in it at once")
        if self.roster.put(shown):
            if self.learned is not None:
                self.learned(pack_item(shown))
        elif self.roster.held(shown.key) is None and shown.grant.limited:
            raise RemoteError(Reason.USED_UP, "the roster is full")
