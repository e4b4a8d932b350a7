"""A short invite: what a newcomer needs to reach the swarm, and to check all that it gets there.

    short  = [fixed: bin(160), role: uint, name: str<=64, issued_at: uint, expires: uint, uses: uint, psk: bin,
              addresses: [bin], region: str]
    fixed  = seed (32), swarm (16), admin (32), signature (64), named (16)
    address = peer's key (32), kind (1): 4, then IPv4 (4) and port (2); 6, then IPv6 (16) and port (2);
              or 0, then the multiaddr's text without `/p2p/` and the peer

It is the signed invite without what can be computed, the invite's secret, and no manifest. `region` is there where the
invite names one. `named` is the beginning of
the digest of the manifest that was the newest when the invite was made. Any peer may serve the manifests; a newcomer
accepts only a chain that contains that one. `ShortInvite.complete` decides this.
"""

import ipaddress
import re
from dataclasses import dataclass, field
from typing import Final

from gossip.core.backoff import peer_in
from gossip.core.digests import SWARM_ID_BYTES
from gossip.core.errors import LocalError, Reason, RemoteError
from gossip.core.identity import KEY_BYTES, SIGNATURE_BYTES, Identity, peer_id_of
from gossip.core.ids import PeerId, SwarmId
from gossip.core.membership_limits import (
    MAX_ADDRESS_CHARS,
    MAX_LINE_ADDRESSES,
    MAX_LINE_BYTES,
    MAX_NAME_CHARS,
    MAX_USES,
    NAMED_BYTES,
)
from gossip.core.statements import region_in
from gossip.core.wire import malformed, pack
from gossip.membership.invite import Invite, Role, of_region, parse_invite
from gossip.membership.invite_bundle import InviteBundle, check_parts
from gossip.membership.manifest import PSK_BYTES
from gossip.membership.manifest_chain import ManifestChain, pack_manifests
from gossip.membership.signed import key_of, unpack_exact

ROLES: Final = (Role.TRAINER, Role.OBSERVER, Role.RELAY, Role.BOOTSTRAP)
"""Roles by their numbers in a line: a part of the format."""

_FIXED: Final = (KEY_BYTES, SWARM_ID_BYTES, KEY_BYTES, SIGNATURE_BYTES, NAMED_BYTES)
_MAX_SHORT_BYTES: Final = 2048
"""160, the name, the pre-shared key, and four of the longest addresses."""

_TCP: Final = re.compile(r"/ip([46])/([^/]+)/tcp/(\d{1,5})")
_TEXT: Final = 0


@dataclass(frozen=True, kw_only=True)
class ShortInvite:
    """The content of a short line. `secret`, `psk`: as in an InviteBundle; `named`: the first bytes of a manifest's
    digest; `addresses`: where to ask for the manifests."""

    invite: Invite
    secret: Identity = field(repr=False)
    named: bytes
    addresses: tuple[str, ...]
    psk: bytes | None = field(default=None, repr=False)

    def complete(self, chain: ManifestChain) -> InviteBundle:
        """Return the whole invite, with manifests from any source. Raises RemoteError when they are another swarm's,
        lack the one that the invite names, or do not fit the rest."""
        if chain.swarm != self.invite.swarm:
            raise RemoteError(Reason.WRONG_SWARM, "the manifests of another swarm")
        if not chain.holds(self.named):
            raise RemoteError(Reason.DIGEST_MISMATCH, "without the manifest that the invite names")
        whole = InviteBundle(invite=self.invite, secret=self.secret, chain=chain, psk=self.psk)
        check_parts(whole)
        return whole


def shorten(invitation: InviteBundle) -> ShortInvite | None:
    """Return the short form; None where the newest manifest names no address at which a newcomer could ask. Raises
    LocalError when the manifests are more than a visit may return."""
    chain, addresses = invitation.chain, _chosen(invitation.chain.newest.terms.bootstrap)
    if len(pack_manifests(chain.spine())) > MAX_LINE_BYTES:
        raise LocalError("the manifest is too large for an invite; a shorter allow list or fewer settings help")
    if not addresses:
        return None
    return ShortInvite(
        invite=invitation.invite,
        secret=invitation.secret,
        named=chain.newest.digest[:NAMED_BYTES],
        addresses=addresses,
        psk=invitation.psk,
    )


def pack_short(short: ShortInvite) -> bytes:
    """Return the bytes of the line's body."""
    invite = short.invite
    signature = invite.raw[-SIGNATURE_BYTES:]
    fixed = short.secret.seed + invite.swarm + invite.admin + signature + short.named
    rest = (ROLES.index(invite.role), invite.name, invite.issued_at, invite.expires or 0, invite.uses or 0)
    places = [_pack_address(each) for each in short.addresses]
    return pack((fixed, *rest, short.psk or b"", places, *of_region(invite.region)))


def parse_short(packed: bytes) -> ShortInvite:
    """Parse a short invite and check its signature. Raises RemoteError."""
    fields = unpack_exact(packed, _MAX_SHORT_BYTES)
    seed, swarm, admin, signature, named = _cut(fields.exactly(sum(_FIXED)))
    role, name = ROLES[fields.integer(len(ROLES) - 1)], fields.text(MAX_NAME_CHARS)
    issued_at, expires, uses = fields.integer(), fields.integer(), fields.integer(MAX_USES)
    psk, places = fields.binary(PSK_BYTES), fields.array(MAX_LINE_ADDRESSES)
    region = region_in(fields) if fields.left else ""
    fields.end()
    addresses = tuple(_parse_address(places.binary(MAX_ADDRESS_CHARS)) for _ in range(places.left))
    if not addresses:
        raise malformed("no address to ask at")
    if len(psk) not in (0, PSK_BYTES):
        raise malformed("no pre-shared key")
    secret = Identity(seed)
    granted = pack((SwarmId(swarm), secret.public_key, role.value, name, issued_at, expires, uses, *of_region(region)))
    invite = parse_invite(pack((granted, admin, signature)))
    return ShortInvite(invite=invite, secret=secret, named=named, addresses=addresses, psk=psk or None)


def _cut(fixed: bytes) -> list[bytes]:
    parts, at = [], 0
    for size in _FIXED:
        parts.append(fixed[at : at + size])
        at += size
    return parts


def _chosen(bootstrap: tuple[str, ...]) -> tuple[str, ...]:
    """Return as many addresses as a line has, of different peers first. A newcomer cannot ask for a circuit."""
    direct = [each for each in bootstrap if "/p2p-circuit/" not in each]
    first = {peer_in(each): each for each in reversed(direct)}.values()
    return tuple(sorted(direct, key=lambda each: each not in first))[:MAX_LINE_ADDRESSES]


def _pack_address(address: str) -> bytes:
    place, _, peer = address.rpartition("/p2p/")
    return key_of(PeerId(peer)) + _pack_place(place)


def _pack_place(place: str) -> bytes:
    found = _TCP.fullmatch(place)
    if found is not None and int(found[3]) < 1 << 16:
        try:
            packed = bytes([int(found[1])]) + ipaddress.ip_address(found[2]).packed + int(found[3]).to_bytes(2, "big")
            if _parse_place(packed) == place:
                return packed
        except (ValueError, RemoteError):
            pass  # a zone, or another spelling, which is kept as it is
    return bytes([_TEXT]) + place.encode("ascii")


def _parse_address(packed: bytes) -> str:
    key, place = packed[:KEY_BYTES], packed[KEY_BYTES:]
    if len(key) < KEY_BYTES or not place:
        raise malformed("an address that is cut short")
    address = f"{_parse_place(place)}/p2p/{peer_id_of(key)}"
    if len(address) > MAX_ADDRESS_CHARS or not address.isascii() or not address.isprintable():
        raise malformed("no address")
    if _pack_address(address) != packed:
        raise malformed("an address in another spelling")
    return address


def _parse_place(packed: bytes) -> str:
    kind, rest = packed[0], packed[1:]
    if kind == _TEXT and rest.startswith(b"/"):
        return rest.decode("latin-1")
    if (kind, len(rest)) not in ((4, 6), (6, 18)):
        raise malformed("no place of a peer")
    return f"/ip{kind}/{ipaddress.ip_address(rest[:-2])}/tcp/{int.from_bytes(rest[-2:], 'big')}"
