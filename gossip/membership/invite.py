"""What an admin grants: an invite for the holder of its secret, or an appointment of one peer.

    invite      = signed statement of [swarm: bin(16), invite key: bin(32), role: str, name: str, issued_at: uint,
                  expires: uint, uses: uint, region: str]
    appointment = signed statement of [swarm: bin(16), peer: bin(32), role: str, name: str, issued_at: uint,
                  expires: uint, region: str]

`region`, the last field, is there where the admin binds the membership to one region of the run, and absent otherwise.
Times are unix seconds; 0 stands for no expiry and for no number of uses. `expires` ends the membership, not only the
time to redeem it: when a stranger claims to have redeemed an invite, nobody can check it (decision 0024). One admin is
enough, whatever threshold a manifest asks for: a grant can be revoked.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from gossip.core.digests import SWARM_ID_BYTES
from gossip.core.identity import KEY_BYTES
from gossip.core.ids import Digest, PeerId, SwarmId
from gossip.core.membership_limits import (
    MAX_CERTIFICATE_BYTES,
    MAX_NAME_CHARS,
    MAX_OPEN_USES,
    MAX_REDEMPTIONS,
    MAX_USES,
)
from gossip.core.statements import region_in
from gossip.core.wire import Fields, malformed
from gossip.membership.signed import SignedKind, Signer, key_of, open_signed, ours, peer_of, sign

_MAX_ROLE_CHARS: Final = 16


class Role(StrEnum):
    """What a member may do."""

    TRAINER = "trainer"
    OBSERVER = "observer"
    RELAY = "relay"
    BOOTSTRAP = "bootstrap"


@dataclass(frozen=True, kw_only=True)
class Invite:
    """A bearer invite. `key`: of its secret; `admin`: the signer; `id`: the digest of `admin` and the fields.
    `region`: the only one that a member by it may be of; "" where the admin names none."""

    swarm: SwarmId
    key: bytes
    role: Role
    name: str
    issued_at: int
    expires: int | None
    uses: int | None
    admin: bytes
    id: Digest
    raw: bytes = field(repr=False)
    region: str = ""

    @property
    def capacity(self) -> int:
        """How many redemptions of it a roster holds: its number of uses, or a bound."""
        return min(MAX_OPEN_USES if self.uses is None else self.uses, MAX_REDEMPTIONS)

    @property
    def limited(self) -> bool:
        """Whether its redemptions are counted."""
        return self.uses is not None


@dataclass(frozen=True, kw_only=True)
class Appointment:
    """A membership of one peer, given by an admin: for the creator's own node, and for a member that lost a key.
    `region`: as in an invite."""

    swarm: SwarmId
    peer: PeerId
    role: Role
    name: str
    issued_at: int
    expires: int | None
    admin: bytes
    id: Digest
    raw: bytes = field(repr=False)
    region: str = ""

    @property
    def capacity(self) -> int:
        """One: an appointment is for one peer."""
        return 1

    @property
    def limited(self) -> bool:
        """True: it has one place, which no other peer takes."""
        return True


def make_invite(
    admin: Signer,
    swarm: SwarmId,
    secret: Signer,
    *,
    role: Role,
    issued_at: int,
    name: str = "",
    expires: int | None = None,
    uses: int | None = 1,
    region: str = "",
) -> Invite:
    """Sign an invite for the holder of `secret`, which is made for it alone. Raises LocalError on values out of bounds.
    Both times in unix seconds."""
    fields = (swarm, secret.public_key, role.value, name, issued_at, expires or 0, uses or 0, *of_region(region))
    return ours(parse_invite, sign(SignedKind.INVITE, fields, admin))


def appoint(
    admin: Signer,
    swarm: SwarmId,
    peer: PeerId,
    *,
    role: Role,
    issued_at: int,
    name: str = "",
    expires: int | None = None,
    region: str = "",
) -> Appointment:
    """Sign a membership of `peer`. Raises LocalError on values out of bounds."""
    fields = (swarm, key_of(peer), role.value, name, issued_at, expires or 0, *of_region(region))
    return ours(parse_appointment, sign(SignedKind.APPOINTMENT, fields, admin))


def of_region(region: str) -> tuple[str, ...]:
    """Return a grant's last field, or none where it names no region: so what was signed before is read as it was."""
    return (region,) if region else ()


def parse_invite(raw: bytes) -> Invite:
    """Parse an invite and check its signature, but not whether its signer is an admin. Raises RemoteError."""
    signed = open_signed(SignedKind.INVITE, raw, MAX_CERTIFICATE_BYTES)
    fields = signed.fields
    swarm, key = SwarmId(fields.exactly(SWARM_ID_BYTES)), fields.exactly(KEY_BYTES)
    role, name, issued_at, expires = _granted(fields)
    uses, region = fields.integer(MAX_USES), _region(fields)
    fields.end()
    return Invite(
        swarm=swarm,
        key=key,
        role=role,
        name=name,
        issued_at=issued_at,
        expires=expires,
        uses=uses or None,
        admin=signed.key,
        id=signed.digest,
        raw=raw,
        region=region,
    )


def parse_appointment(raw: bytes) -> Appointment:
    """Parse an appointment and check its signature, but not whether its signer is an admin. Raises RemoteError."""
    signed = open_signed(SignedKind.APPOINTMENT, raw, MAX_CERTIFICATE_BYTES)
    fields = signed.fields
    swarm, peer = SwarmId(fields.exactly(SWARM_ID_BYTES)), peer_of(fields)
    role, name, issued_at, expires = _granted(fields)
    region = _region(fields)
    fields.end()
    return Appointment(
        swarm=swarm,
        peer=peer,
        role=role,
        name=name,
        issued_at=issued_at,
        expires=expires,
        admin=signed.key,
        id=signed.digest,
        raw=raw,
        region=region,
    )


def _granted(fields: Fields) -> tuple[Role, str, int, int | None]:
    role, name = fields.text(_MAX_ROLE_CHARS), fields.text(MAX_NAME_CHARS)
    issued_at, expires = fields.integer(), fields.integer()
    if role not in {each.value for each in Role}:
        raise malformed(f"no role {role}")
    if expires and expires <= issued_at:
        raise malformed("expires before it is issued")
    return Role(role), name, issued_at, expires or None


def _region(fields: Fields) -> str:
    return region_in(fields) if fields.left else ""
