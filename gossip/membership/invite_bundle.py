"""All that an invite gives to a newcomer: the signed invite, its secret, the manifests, the pre-shared key."""

from dataclasses import dataclass, field

from gossip.core.identity import Identity
from gossip.core.ids import PeerId
from gossip.core.wire import malformed
from gossip.membership.certificate import Certificate, redeem
from gossip.membership.invite import Invite
from gossip.membership.manifest import PSK_BYTES, psk_fingerprint
from gossip.membership.manifest_chain import ManifestChain


@dataclass(frozen=True, kw_only=True)
class InviteBundle:
    """The content of a full invite line, which a short one stands for. The holder of the line has `secret`; it is never
    sent to members."""

    invite: Invite
    secret: Identity = field(repr=False)
    chain: ManifestChain
    psk: bytes | None = field(default=None, repr=False)

    def redeem(self, peer: PeerId, *, issued_at: int, nonce: bytes) -> Certificate:
        """Make `peer` a member; `issued_at` in unix seconds, `nonce` 16 random bytes. Raises LocalError."""
        return redeem(self.invite, self.secret, peer, issued_at=issued_at, nonce=nonce)


def check_parts(invitation: InviteBundle) -> None:
    """Raise RemoteError(MALFORMED) when the parts do not belong together."""
    invite, terms = invitation.invite, invitation.chain.newest.terms
    if invite.swarm != invitation.chain.swarm or invite.key != invitation.secret.public_key:
        raise malformed("its parts are of two invites")
    if invite.admin not in terms.admins:
        raise malformed("it is signed by nobody who is an admin now")
    fingerprint = None if invitation.psk is None else psk_fingerprint(invitation.psk)
    if fingerprint != terms.psk_fingerprint or (invitation.psk is not None and len(invitation.psk) != PSK_BYTES):
        raise malformed("its pre-shared key is not the swarm's")
