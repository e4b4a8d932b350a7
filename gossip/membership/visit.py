"""How the holder of a short invite gets the manifests: it connects, shows the invite, gets a piece of them, and is
disconnected. All of that is inside the handshake, so no stranger ever has a stream.

    visit  = [3, invite: bin, asked: bin]           in the place of credentials
    asked  = statement by the invite's key of [peer: bin(32), named: bin(16), at: uint]
    answer = [size: uint, check: bin(16), piece: bin]

`peer` is the key that the caller has proved, so a visit is of no use to a peer that copies it, such as the member that
is asked. The key is made for the visit, and is not the node's; the statement is no redemption, so asking takes no use.
`named` is the manifest that the chain has to contain, and `at` where the piece begins in `[manifest: bin]`, of which
`size` is the length and `check` the beginning of the digest. A caller is answered if its invite, by an admin, would
admit it now. If the invite is expired, revoked or used up the caller is told so, as in every handshake (refusal.py),
and everybody else hears nothing.

The answer is only the claim of the node at that address: `Visitor` accepts what `ShortInvite.complete` accepts.
"""

from dataclasses import dataclass, field
from typing import Final

from gossip.core.digests import digest_of
from gossip.core.errors import Reason, RemoteError
from gossip.core.identity import Identity
from gossip.core.ids import PeerId
from gossip.core.membership_limits import (
    MAX_CERTIFICATE_BYTES,
    MAX_LINE_BYTES,
    MAX_PIECE_BYTES,
    NAMED_BYTES,
    TOLERANCE_S,
)
from gossip.core.wire import malformed, pack
from gossip.membership.invite import Invite, parse_invite
from gossip.membership.invite_bundle import InviteBundle
from gossip.membership.manifest_chain import ManifestChain, load_chain, pack_manifests
from gossip.membership.refusal import TOLD, Refusal, invite_words, parse_refusal
from gossip.membership.revocation import What
from gossip.membership.roster import Roster
from gossip.membership.short_invite import ShortInvite
from gossip.membership.signed import SignedKind, Signer, key_of, open_signed, peer_of, sign, unpack_exact

FORM: Final = 3
"""The form number, after those of certificates."""

_CHECK_BYTES: Final = 16
_BEGINS: Final = b"\x93\x03"
_REFUSAL: Final = b"\x92"


@dataclass(frozen=True, kw_only=True)
class Visit:
    """What a caller asks. `peer`: the key that it must have proved."""

    invite: Invite
    peer: PeerId
    named: bytes
    at: int


class TurnedAwayError(RemoteError):
    """A member refuses this invite, and says why. `signed`: by a revocation of the admin who made the invite; otherwise
    it is only the member's claim."""

    def __init__(self, refusal: Refusal, *, signed: bool) -> None:
        super().__init__(refusal.reason, invite_words(refusal, signed=signed))
        self.signed = signed


def is_visit(credentials: bytes) -> bool:
    """Return whether these bytes are meant as a visit."""
    return credentials.startswith(_BEGINS)


def make_visit(invite: Invite, secret: Signer, peer: PeerId, named: bytes, at: int) -> bytes:
    """Return what `peer` shows to get the piece that begins at `at`. Raises LocalError."""
    return pack((FORM, invite.raw, sign(SignedKind.VISIT, (key_of(peer), named, at), secret)))


def parse_visit(raw: bytes) -> Visit:
    """Parse a visit and check its signatures. Raises RemoteError(OVERSIZE | MALFORMED | FORGED)."""
    fields = unpack_exact(raw, MAX_CERTIFICATE_BYTES)
    form, granted, asked = (
        fields.integer(FORM),
        fields.binary(MAX_CERTIFICATE_BYTES),
        fields.binary(MAX_CERTIFICATE_BYTES),
    )
    fields.end()
    if form != FORM:
        raise malformed("no visit")
    invite, signed = parse_invite(granted), open_signed(SignedKind.VISIT, asked, MAX_CERTIFICATE_BYTES)
    peer, named, at = peer_of(signed.fields), signed.fields.exactly(NAMED_BYTES), signed.fields.integer(MAX_LINE_BYTES)
    signed.fields.end()
    if signed.key != invite.key:
        raise RemoteError(Reason.FORGED, "a visit by somebody who has not the invite's secret")
    return Visit(invite=invite, peer=peer, named=named, at=at)


def check_visit(peer: PeerId, visit: Visit, chain: ManifestChain, roster: Roster, now: float) -> None:
    """Check that the peer that proved this key gets an answer. Raises RemoteError(WRONG_SWARM | FORGED | EXPIRED |
    REVOKED | USED_UP). `now` in unix seconds."""
    invite = visit.invite
    if invite.swarm != chain.swarm:
        raise RemoteError(Reason.WRONG_SWARM, "an invite to another swarm")
    if invite.admin not in chain.newest.terms.admins:
        raise RemoteError(Reason.FORGED, "an invite by nobody who is an admin")
    if visit.peer != peer:
        raise RemoteError(Reason.FORGED, "the visit of another peer")
    if invite.expires is not None and now > invite.expires + TOLERANCE_S:
        raise RemoteError(Reason.EXPIRED, "the invite has ended")
    if invite.issued_at > now + TOLERANCE_S:
        raise RemoteError(Reason.EXPIRED, f"issued {invite.issued_at - now:.0f} s ahead of our clock")
    revocation = roster.revoked_grant(invite.id)
    if revocation is not None:
        raise RemoteError(Reason.REVOKED, revocation.reason)
    if invite.limited and roster.taken(invite.id) >= invite.capacity:
        raise RemoteError(Reason.USED_UP, f"all {invite.capacity} uses of the invite are taken")


def refusal_for_visit(
    peer: PeerId, visit: Visit, roster: Roster, chain: ManifestChain, error: RemoteError
) -> Refusal | None:
    """Return what a caller is told whose visit is refused for `error`; None: nothing, like every stranger."""
    admin = visit.invite.admin
    if visit.peer != peer or error.reason not in TOLD:
        return None
    if admin not in chain.newest.terms.admins:  # without a chain the caller could check no manifest
        return Refusal(reason=Reason.FORGED) if chain.removal_of(admin) else None
    revocation = roster.revoked_grant(visit.invite.id) if error.reason is Reason.REVOKED else None
    return Refusal(reason=error.reason, revocation=revocation)


def answer_visit(visit: Visit, chain: ManifestChain) -> bytes:
    """Return the requested piece. Raises RemoteError when there is none."""
    whole = pack_manifests(chain.spine(visit.named))
    if len(whole) > MAX_LINE_BYTES:
        raise RemoteError(Reason.OVERSIZE, "more manifests than a line may stand for")
    piece = whole[visit.at : visit.at + MAX_PIECE_BYTES]
    if not piece:
        raise RemoteError(Reason.PROTOCOL, "asks for what is beyond the manifests")
    return pack((len(whole), digest_of(whole)[:_CHECK_BYTES], piece))


@dataclass
class Visitor:
    """The newcomer's side, which is also its transport's `Admission` and admits nobody. `identity` is made for this.
    Call `begin` before each node that is asked; after each visit, `take`."""

    short: ShortInvite
    identity: Identity
    _whole: bytes = field(default=b"", repr=False)
    _of: tuple[int, bytes] | None = None
    _said: bytes | None = field(default=None, repr=False)

    def begin(self) -> None:
        """Start at the first byte: what one node sent is not mixed with another's."""
        self._whole, self._of, self._said = b"", None, None

    def credentials(self) -> bytes:
        """Return the visit for what is still missing."""
        short = self.short
        return make_visit(short.invite, short.secret, self.identity.peer_id, short.named, len(self._whole))

    def admit(self, peer: PeerId, credentials: bytes) -> None:
        """Raise RemoteError for every peer."""
        raise RemoteError(Reason.NO_MEMBER, "it takes a visit for a membership")

    def explain(self, peer: PeerId, credentials: bytes, error: RemoteError) -> bytes:
        """Return nothing."""
        return b""

    def heard(self, peer: PeerId, said: bytes) -> str:
        """Keep the answer for `take`."""
        self._said = said
        return "it has answered"

    @property
    def answered(self) -> bool:
        """Whether the last visit was answered."""
        return self._said is not None

    def take(self) -> InviteBundle | None:
        """Return the whole invite; None while pieces are missing. Raises RemoteError for a missing or malformed answer,
        TurnedAwayError for a refusal with a reason."""
        said, self._said = self._said, None
        if said is None:
            raise RemoteError(Reason.UNAVAILABLE, "it does not answer this invite")
        if said.startswith(_REFUSAL):
            refusal = parse_refusal(said)
            raise TurnedAwayError(refusal, signed=self._is_of_us(refusal))
        return self._join(*_parse_answer(said))

    def _join(self, size: int, check: bytes, piece: bytes) -> InviteBundle | None:
        if self._of not in (None, (size, check)):
            raise RemoteError(Reason.CONTRADICTED, "its manifests changed while they came")
        self._of = size, check
        if len(piece) != min(MAX_PIECE_BYTES, size - len(self._whole)):
            raise malformed("a piece of another length")
        self._whole += piece
        if len(self._whole) < size:
            return None
        if digest_of(self._whole)[:_CHECK_BYTES] != check:
            raise RemoteError(Reason.DIGEST_MISMATCH, "other manifests than it said")
        return self.short.complete(load_chain(self._whole))

    def _is_of_us(self, refusal: Refusal) -> bool:
        """Whether the invite's own admin signed the revocation: the only admin that we know without a manifest."""
        out, invite = refusal.revocation, self.short.invite
        if out is None:
            return False
        named = (out.swarm, out.what, out.target, out.admin)
        return named == (invite.swarm, What.GRANT, invite.id, invite.admin)


def _parse_answer(said: bytes) -> tuple[int, bytes, bytes]:
    fields = unpack_exact(said, MAX_CERTIFICATE_BYTES)
    size, check, piece = fields.integer(MAX_LINE_BYTES), fields.exactly(_CHECK_BYTES), fields.binary(MAX_PIECE_BYTES)
    fields.end()
    return size, check, piece
