"""Whether a peer is a member now: one question, answered from what it shows, the manifest, the roster and the clock.

The checks are made in the order of the code; the first that fails is the reason. Signatures were checked when the
certificate was parsed.
"""

from typing import Final

from gossip.core.errors import Reason, RemoteError
from gossip.core.ids import PeerId
from gossip.core.membership_limits import TOLERANCE_S
from gossip.membership.certificate import Certificate, SwarmClaim
from gossip.membership.invite import Appointment, Role
from gossip.membership.manifest import ManifestBody, Policy
from gossip.membership.manifest_chain import ManifestChain
from gossip.membership.roster import Roster

NOT_BY_AN_ADMIN: Final = "granted by nobody who is an admin"
"""The detail of FORGED where the certificate itself is sound: who signed it may have been an admin before."""


def check_membership(
    peer: PeerId, shown: Certificate | SwarmClaim, chain: ManifestChain, roster: Roster, now: float
) -> Role:
    """Return the role of the peer that proved this key and shows this. Raises RemoteError(WRONG_SWARM | FORGED |
    EXPIRED | REVOKED | NO_MEMBER | USED_UP). `now` in unix seconds."""
    terms = chain.newest.terms
    swarm = shown.swarm if isinstance(shown, SwarmClaim) else shown.grant.swarm
    if swarm != chain.swarm:
        raise RemoteError(Reason.WRONG_SWARM, "a member of another swarm")
    if roster.replaced(peer):
        raise RemoteError(Reason.REVOKED, "the key has named its successor")
    if isinstance(shown, SwarmClaim):
        return _plain(peer, terms, roster)
    _check_chain(peer, shown, terms)
    _check_times(shown, now)
    _check_revoked(shown, roster)
    if terms.policy is Policy.ALLOW and not (
        isinstance(shown.grant, Appointment) or terms.allow.intersection(shown.lineage)
    ):
        raise RemoteError(Reason.NO_MEMBER, "not on the list")
    _check_place(shown, roster)
    return shown.role


def _plain(peer: PeerId, terms: ManifestBody, roster: Roster) -> Role:
    if roster.revoked_peer(peer) is not None:
        raise RemoteError(Reason.REVOKED, "the peer is revoked")
    if terms.policy is Policy.OPEN or (terms.policy is Policy.ALLOW and peer in terms.allow):
        return Role.TRAINER
    raise RemoteError(Reason.NO_MEMBER, "shows no certificate")


def _check_chain(peer: PeerId, shown: Certificate, terms: ManifestBody) -> None:
    if shown.grant.admin not in terms.admins:
        raise RemoteError(Reason.FORGED, NOT_BY_AN_ADMIN)
    if shown.peer != peer:
        raise RemoteError(Reason.FORGED, "the certificate of another peer")


def _check_times(shown: Certificate, now: float) -> None:
    if shown.newest_time > now + TOLERANCE_S:
        raise RemoteError(Reason.EXPIRED, f"issued {shown.newest_time - now:.0f} s ahead of our clock")
    if expired(shown, now):
        raise RemoteError(Reason.EXPIRED, "the membership has ended")


def expired(shown: Certificate, now: float) -> bool:
    """Return whether a membership has ended, `TOLERANCE_S` after its time."""
    return shown.grant.expires is not None and now > shown.grant.expires + TOLERANCE_S


def members(roster: Roster, now: float) -> int:
    """Return how many members hold a certificate that is valid now."""
    return sum(not expired(each, now) and roster.revoked(each) is None for each in roster.certificates)


def _check_revoked(shown: Certificate, roster: Roster) -> None:
    revocation = roster.revoked(shown)
    if revocation is not None:
        raise RemoteError(Reason.REVOKED, revocation.reason)
    held = roster.held(shown.key)
    # Of two peers that claim to follow one key, the one that we knew first stays.
    if held is not None and held.lineage != shown.lineage[: len(held.lineage)]:
        raise RemoteError(Reason.REVOKED, "the key has named another successor")


def _check_place(shown: Certificate, roster: Roster) -> None:
    """Check that a peer has a place. A known one has; a newcomer needs a free one, whatever joining time it claims."""
    if roster.held(shown.key) is not None:
        return
    grant = shown.grant
    if grant.limited and roster.taken(grant.id) >= grant.capacity:
        raise RemoteError(Reason.USED_UP, f"all {grant.capacity} uses of the invite are taken")
