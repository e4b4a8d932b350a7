"""Private swarms: who may be a member, decided by every member alone from what admins signed. No clock, no sockets.

An `Authority` signs a `Manifest` (what the swarm is) and invites; a newcomer redeems its line for a `Certificate`;
a `Gate` lets peers in by it, with a `Roster` of who came and who was revoked. The formats: docs/private-swarms.md.
"""

from gossip.membership.authority import Authority
from gossip.membership.certificate import (
    Certificate,
    Plain,
    Rotation,
    appointed,
    parse_certificate,
    parse_rotation,
    redeem,
    rotate,
    rotated,
)
from gossip.membership.chain import ManifestChain, load_own_chain, pack_manifests
from gossip.membership.gate import Applied, Gate
from gossip.membership.invitation import Invitation
from gossip.membership.invite import Appointment, Invite, Role, appoint, make_invite
from gossip.membership.line import encode_line, encode_short, parse_any, parse_line
from gossip.membership.manifest import Manifest, Policy, Terms, found, parse_manifest, psk_fingerprint, succeed
from gossip.membership.revocation import Revocation, What, parse_revocation, revoke_grant, revoke_peer
from gossip.membership.roster import Roster, pack_item, parse_item
from gossip.membership.short_invite import ShortInvite, shorten
from gossip.membership.sync import buckets, differing, dump_roster, load_roster, pages, parse_page, roster_digest

__all__ = [
    "Applied",
    "Appointment",
    "Authority",
    "Certificate",
    "Gate",
    "Invitation",
    "Invite",
    "Manifest",
    "ManifestChain",
    "Plain",
    "Policy",
    "Revocation",
    "Role",
    "Roster",
    "Rotation",
    "ShortInvite",
    "Terms",
    "What",
    "appoint",
    "appointed",
    "buckets",
    "differing",
    "dump_roster",
    "encode_line",
    "encode_short",
    "found",
    "load_own_chain",
    "load_roster",
    "make_invite",
    "pack_item",
    "pack_manifests",
    "pages",
    "parse_any",
    "parse_certificate",
    "parse_item",
    "parse_line",
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
    "succeed",
]
