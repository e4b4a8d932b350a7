"""An admin's signed statement that a peer or a grant is revoked, for good.

    revocation = signed statement of [swarm: bin(16), what: str, target: bin(32), issued_at: uint, reason: str]

`target` is a peer's public key, or the id of an invite or appointment: that revokes all who joined by it.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, TypeAlias

from gossip.core.digests import SWARM_ID_BYTES
from gossip.core.identity import peer_id_of
from gossip.core.ids import Digest, PeerId, SwarmId
from gossip.core.membership_limits import MAX_CERTIFICATE_BYTES, MAX_REASON_CHARS
from gossip.core.wire import malformed
from gossip.membership.signed import SignedKind, Signer, key_of, open_signed, ours, sign

Target: TypeAlias = "tuple[What, PeerId | Digest]"
_MAX_WHAT_CHARS: Final = 16


class What(StrEnum):
    """What a revocation names."""

    PEER = "peer"
    GRANT = "grant"


@dataclass(frozen=True, kw_only=True)
class Revocation:
    """Who is revoked, since when (unix seconds, by the admin's clock) and why."""

    swarm: SwarmId
    what: What
    target: PeerId | Digest
    issued_at: int
    reason: str
    admin: bytes
    digest: Digest
    raw: bytes = field(repr=False)

    @property
    def names(self) -> Target:
        """What is revoked."""
        return self.what, self.target

    @property
    def order(self) -> tuple[int, bytes]:
        """The key of the total order of revocations."""
        return self.issued_at, self.digest


def revoke_peer(admin: Signer, swarm: SwarmId, peer: PeerId, *, issued_at: int, reason: str = "") -> Revocation:
    """Sign that a peer is revoked. Raises LocalError on a reason that is too long or not plain ASCII."""
    return _revoke(admin, (swarm, What.PEER.value, key_of(peer), issued_at, reason))


def revoke_grant(admin: Signer, swarm: SwarmId, grant: Digest, *, issued_at: int, reason: str = "") -> Revocation:
    """Sign that an invite or appointment is void, with all that joined by it. Raises LocalError as `revoke_peer`
    does."""
    return _revoke(admin, (swarm, What.GRANT.value, grant, issued_at, reason))


def parse_revocation(raw: bytes) -> Revocation:
    """Parse a revocation and check its signature, but not whether its signer is an admin. Raises RemoteError."""
    signed = open_signed(SignedKind.REVOCATION, raw, MAX_CERTIFICATE_BYTES)
    fields = signed.fields
    swarm, what = SwarmId(fields.exactly(SWARM_ID_BYTES)), fields.text(_MAX_WHAT_CHARS)
    target, issued_at, reason = fields.digest(), fields.integer(), fields.text(MAX_REASON_CHARS)
    fields.end()
    if what not in {each.value for each in What}:
        raise malformed(f"nothing known is revoked: {what}")
    return Revocation(
        swarm=swarm,
        what=What(what),
        target=peer_id_of(target) if what == What.PEER else target,
        issued_at=issued_at,
        reason=reason,
        admin=signed.key,
        digest=signed.digest,
        raw=raw,
    )


def _revoke(admin: Signer, fields: tuple[object, ...]) -> Revocation:
    return ours(parse_revocation, sign(SignedKind.REVOCATION, fields, admin))
