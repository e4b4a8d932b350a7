"""Private swarms: every member decides alone who may be a member, from what admins signed. No clock, no sockets.

An `Authority` signs a `Manifest` (what the swarm is) and invites; a newcomer redeems its invite for a `Certificate`; a
`MembershipAdmission` admits peers by it, with a `Roster` of who came and who was revoked. The formats:
docs/private-swarms.md.
"""

from gossip.membership.admission import Applied, MembershipAdmission
from gossip.membership.authority import Authority
from gossip.membership.certificate import (
    Certificate,
    Rotation,
    SwarmClaim,
    appointed,
    parse_certificate,
    parse_rotation,
    redeem,
    rotate,
    rotated,
)
from gossip.membership.invite import Appointment, Invite, Role, appoint, make_invite
from gossip.membership.invite_bundle import InviteBundle
from gossip.membership.invite_code import encode_invite_code, encode_short, parse_any, parse_invite_code
from gossip.membership.manifest import (
    Manifest,
    ManifestBody,
    Policy,
    create_manifest,
    next_version,
    parse_manifest,
    psk_fingerprint,
)
from gossip.membership.manifest_chain import ManifestChain, load_own_chain, pack_manifests
from gossip.membership.revocation import Revocation, What, parse_revocation, revoke_grant, revoke_peer
from gossip.membership.roster import Roster, pack_item, parse_item
from gossip.membership.roster_sync import buckets, differing, dump_roster, load_roster, pages, parse_page, roster_digest
from gossip.membership.short_invite import ShortInvite, shorten

__all__ = [
    "Applied",
    "Appointment",
    "Authority",
    "Certificate",
    "Invite",
    "InviteBundle",
    "Manifest",
    "ManifestBody",
    "ManifestChain",
    "MembershipAdmission",
    "Policy",
    "Revocation",
    "Role",
    "Roster",
    "Rotation",
    "ShortInvite",
    "SwarmClaim",
    "What",
    "appoint",
    "appointed",
    "buckets",
    "create_manifest",
    "differing",
    "dump_roster",
    "encode_invite_code",
    "encode_short",
    "load_own_chain",
    "load_roster",
    "make_invite",
    "next_version",
    "pack_item",
    "pack_manifests",
    "pages",
    "parse_any",
    "parse_certificate",
    "parse_invite_code",
    "parse_item",
    "parse_manifest",
    "parse_page",
    "parse_revocation",
    "parse_rotation",
    "psk_fingerprint",
    "redeem",
    "revoke_grant",
    "revoke_peer",
    "roster_digest",
    "rotate",
    "rotated",
    "shorten",
]
