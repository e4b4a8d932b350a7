"""A private swarm for the adversary: one admin, an invite for everybody, and hostile nodes that were let in."""

from pathlib import Path

from gossip.core.digests import digest_of
from gossip.core.identity import Identity
from gossip.core.ids import PeerId
from gossip.core.membership_limits import NAMED_BYTES
from gossip.membership import (
    Authority,
    Certificate,
    Manifest,
    ManifestBody,
    ManifestChain,
    MembershipAdmission,
    Role,
    ShortInvite,
    create_manifest,
    make_invite,
    next_version,
    redeem,
)
from gossip.membership.private_swarm import PrivateMembership
from node.swarm.folder import membership_of

FOUNDED: int = 1_700_000_000
"""Unix seconds, long ago: nothing of it expires."""

ADMIN = Authority(b"\x64" * 32)
TERMS = ManifestBody(name="adversary", admins=(ADMIN.public_key,))
SECRET = Identity(b"\x55" * 32)


def chain() -> ManifestChain:
    """The swarm's one manifest."""
    return ManifestChain(create_manifest(TERMS, b"n" * 16).signed_by(ADMIN))


SWARM = chain().swarm


def short_line(address: str, *, number: int = 0) -> ShortInvite:
    """The short line that newcomers have: of everybody's invite (number 0), or of another one."""
    secret = SECRET if number == 0 else Identity(number.to_bytes(4, "big") + b"\x66" * 28)
    invite = make_invite(ADMIN, SWARM, secret, role=Role.TRAINER, issued_at=FOUNDED, uses=None, name="all")
    named = chain().newest.digest[:NAMED_BYTES]
    return ShortInvite(invite=invite, secret=secret, named=named, addresses=(address,))


def certificate(peer: PeerId, number: int = 0, region: str = "") -> Certificate:
    """By the line that everybody has, or everybody of a region: an invite without a number of uses."""
    how = {"issued_at": FOUNDED, "uses": None, "name": "all", "region": region}
    invite = make_invite(ADMIN, SWARM, SECRET, role=Role.TRAINER, **how)
    return redeem(invite, SECRET, peer, issued_at=FOUNDED + number, nonce=digest_of(peer.encode())[:16])


def enroll(folder: Path, peer: PeerId, region: str = "") -> None:
    """A node's folder as `join` leaves it."""
    files = membership_of(folder)
    if not files.joined:
        files.folder.mkdir(parents=True, exist_ok=True)
        files.save_certificate(certificate(peer, region=region))
        files.save_manifests(chain())


def gate_of(folder: Path, peer: PeerId, region: str = "") -> MembershipAdmission:
    """What a hostile member's transport asks."""
    enroll(folder, peer, region)
    return PrivateMembership.load(membership_of(folder), peer, now=lambda: FOUNDED + 1000.0).admission


def forged_manifest(last: Manifest, by: Identity) -> Manifest:
    """The next version, signed by somebody who is no admin."""
    return next_version(last, TERMS, applies_at=1).signed_by(Authority(by.seed))
