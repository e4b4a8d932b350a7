"""What a member shows in the handshake, and what a roster holds of it.

    certificate = [form: uint, swarm: bin(16)]                                         0: nothing but the swarm's name
                  [form: uint, grant: bin, redemption: bin, rotations: [bin]]          1: by an invite
                  [form: uint, grant: bin, rotations: [bin]]                           2: by an appointment
    redemption  = signed by the invite's key: [invite id: bin(32), peer: bin(32), issued_at: uint, nonce: bin(16)]
    rotation    = signed by the old key: [old: bin(32), new: bin(32), issued_at: uint]

The invite's secret stays with the newcomer that redeems it: members see only its signature. A rotation belongs to no
swarm: the successor of a key is its successor everywhere.
"""

from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeAlias

from gossip.core.digests import DIGEST_BYTES, SWARM_ID_BYTES, digest_of
from gossip.core.errors import Reason, RemoteError
from gossip.core.identity import Identity, verify_key_of
from gossip.core.ids import Digest, PeerId, SwarmId
from gossip.core.membership_limits import MAX_CERTIFICATE_BYTES, MAX_ROTATIONS, TOLERANCE_S
from gossip.core.wire import Fields, malformed, pack
from gossip.membership.invite import Appointment, Invite, Role, parse_appointment, parse_invite
from gossip.membership.signed import (
    NONCE_BYTES,
    SignedKind,
    Signer,
    key_of,
    open_signed,
    ours,
    peer_of,
    sign,
    unpack_exact,
)

Order: TypeAlias = tuple[int, int, bytes, int, bytes]
Key: TypeAlias = tuple[Digest, PeerId]

_PLAIN, _INVITED, _APPOINTED = range(3)


@dataclass(frozen=True, kw_only=True)
class SwarmClaim:
    """Shown instead of a certificate: by a peer of an open swarm, or one on its allow list."""

    swarm: SwarmId

    @property
    def raw(self) -> bytes:
        """Return the bytes shown: the swarm's id."""
        return pack((_PLAIN, self.swarm))


@dataclass(frozen=True, kw_only=True)
class Redemption:
    """A statement by the holder of an invite's secret that a peer becomes a member."""

    invite: Digest
    peer: PeerId
    issued_at: int
    key: bytes
    digest: Digest
    raw: bytes = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class Rotation:
    """A statement by an old key that names its successor."""

    old: PeerId
    new: PeerId
    issued_at: int
    raw: bytes = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """A membership. `root` is the peer that got the grant, `peer` the one that has it now."""

    grant: Invite | Appointment
    redemption: Redemption | None
    rotations: tuple[Rotation, ...]
    raw: bytes = field(repr=False)

    @property
    def root(self) -> PeerId:
        """The peer that got the grant; a redemption is counted under it, whatever key the member has now."""
        if isinstance(self.grant, Appointment):
            return self.grant.peer
        assert self.redemption is not None
        return self.redemption.peer

    @cached_property
    def lineage(self) -> tuple[PeerId, ...]:
        """The root and its successors; the last is the member's present key."""
        return (self.root, *(each.new for each in self.rotations))

    @property
    def peer(self) -> PeerId:
        """The key that has the membership."""
        return self.lineage[-1]

    @property
    def role(self) -> Role:
        """What the member may do."""
        return self.grant.role

    @property
    def region(self) -> str:
        """The only region that the member may be of; "" where its grant names none."""
        return self.grant.region

    @property
    def joined_at(self) -> int:
        """Unix seconds of the redemption or appointment, by the signer's clock."""
        return self.grant.issued_at if self.redemption is None else self.redemption.issued_at

    @property
    def newest_time(self) -> int:
        """The latest time stated anywhere in the certificate."""
        return max(self.grant.issued_at, self.joined_at, *(each.issued_at for each in self.rotations))

    @cached_property
    def digest(self) -> Digest:
        """The digest of the bytes."""
        return digest_of(self.raw)

    @cached_property
    def key(self) -> Key:
        """The key of the membership: one peer by one grant."""
        return self.grant.id, self.root

    @cached_property
    def order(self) -> Order:
        """The total order of certificates: counted grants first, then by time and digest of what was signed at joining;
        within one membership the certificate with more rotations first."""
        signed = self.grant.id if self.redemption is None else self.redemption.digest
        return int(not self.grant.limited), self.joined_at, signed, MAX_ROTATIONS - len(self.rotations), self.digest


def redeem(invite: Invite, secret: Signer, peer: PeerId, *, issued_at: int, nonce: bytes) -> Certificate:
    """Redeem an invite; `issued_at` in unix seconds, `nonce` 16 random bytes. Raises LocalError."""
    fields = (invite.id, key_of(peer), issued_at, nonce)
    return _certificate(invite, sign(SignedKind.REDEMPTION, fields, secret), ())


def appointed(appointment: Appointment) -> Certificate:
    """Return the certificate that the appointed peer shows. Raises LocalError."""
    return _certificate(appointment, None, ())


def rotate(old: Identity, new: PeerId, *, issued_at: int) -> Rotation:
    """Name a successor of a key, in every swarm. Raises LocalError."""
    fields = (old.public_key, key_of(new), issued_at)
    return ours(parse_rotation, sign(SignedKind.ROTATION, fields, old))


def rotated(certificate: Certificate, rotation: Rotation) -> Certificate:
    """Return the membership with its new key. Raises LocalError when the rotation is of another key, or after
    `MAX_ROTATIONS`."""
    redemption = None if certificate.redemption is None else certificate.redemption.raw
    return _certificate(certificate.grant, redemption, (*certificate.rotations, rotation))


def parse_credentials(raw: bytes) -> Certificate | SwarmClaim:
    """Parse what a peer shows. Raises RemoteError(OVERSIZE | MALFORMED | FORGED)."""
    fields = unpack_exact(raw, MAX_CERTIFICATE_BYTES)
    form = fields.integer(_APPOINTED)
    if form != _PLAIN:
        return _parse_rest(form, fields, raw)
    plain = SwarmClaim(swarm=SwarmId(fields.exactly(SWARM_ID_BYTES)))
    fields.end()
    return plain


def parse_certificate(raw: bytes) -> Certificate:
    """Parse a certificate; check all signatures and that its parts belong together. Raises RemoteError."""
    parsed = parse_credentials(raw)
    if isinstance(parsed, SwarmClaim):
        raise malformed("a name is no certificate")
    return parsed


def parse_redemption(raw: bytes) -> Redemption:
    """Parse a redemption and check its signature. Raises RemoteError."""
    signed = open_signed(SignedKind.REDEMPTION, raw, MAX_CERTIFICATE_BYTES)
    fields = signed.fields
    invite, peer, issued_at = Digest(fields.exactly(DIGEST_BYTES)), peer_of(fields), fields.integer()
    fields.exactly(NONCE_BYTES)
    fields.end()
    return Redemption(invite=invite, peer=peer, issued_at=issued_at, key=signed.key, digest=signed.digest, raw=raw)


def parse_rotation(raw: bytes) -> Rotation:
    """Parse a rotation and check that its old key signed it. Raises RemoteError."""
    signed = open_signed(SignedKind.ROTATION, raw, MAX_CERTIFICATE_BYTES)
    fields = signed.fields
    old, new, issued_at = peer_of(fields), peer_of(fields), fields.integer()
    fields.end()
    if verify_key_of(old) != signed.key:
        raise RemoteError(Reason.FORGED, "a successor is named by the key that it follows")
    return Rotation(old=old, new=new, issued_at=issued_at, raw=raw)


def _certificate(grant: Invite | Appointment, redemption: bytes | None, rotations: tuple[Rotation, ...]) -> Certificate:
    links = [each.raw for each in rotations]
    shown = (_APPOINTED, grant.raw, links) if redemption is None else (_INVITED, grant.raw, redemption, links)
    return ours(parse_certificate, pack(shown))


def _parse_rest(form: int, fields: Fields, raw: bytes) -> Certificate:
    grant = fields.binary(MAX_CERTIFICATE_BYTES)
    redemption = fields.binary(MAX_CERTIFICATE_BYTES) if form == _INVITED else None
    links = fields.array(MAX_ROTATIONS)
    rotations = tuple(parse_rotation(links.binary(MAX_CERTIFICATE_BYTES)) for _ in range(links.left))
    fields.end()
    if redemption is None:
        parsed = Certificate(grant=parse_appointment(grant), redemption=None, rotations=rotations, raw=raw)
    else:
        invite, taken = parse_invite(grant), parse_redemption(redemption)
        _check_taken(invite, taken)
        parsed = Certificate(grant=invite, redemption=taken, rotations=rotations, raw=raw)
    _check_lineage(parsed)
    return parsed


def _check_taken(invite: Invite, redemption: Redemption) -> None:
    if redemption.invite != invite.id or redemption.key != invite.key:
        raise malformed("the redemption of another invite")
    if redemption.issued_at < invite.issued_at - TOLERANCE_S:
        raise malformed("redeemed before it was issued")


def _check_lineage(certificate: Certificate) -> None:
    lineage = certificate.lineage
    if len(set(lineage)) != len(lineage):
        raise malformed("a key that follows itself")
    if any(link.old != before for link, before in zip(certificate.rotations, lineage, strict=False)):
        raise malformed("rotations that do not follow each other")
