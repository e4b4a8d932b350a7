"""What a refused peer is told, and how much of that it may believe.

    refusal = [reason: str<=16, proof: bin]
    proof   = revocation where the reason is `revoked`, [manifest: bin] where it is `forged`; else b""

Only a peer that shows a certificate by a present or former admin of the swarm, or is named by a revocation, is told
anything: a stranger hears nothing. Admins signed the proof, and the refused peer checks it as it would have done on
getting it among members: no member can make one up. Without a proof the reason is only the sender's claim, a hint and
no more. No other member is named.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from gossip.core.errors import LocalError, Reason, RemoteError
from gossip.core.ids import PeerId
from gossip.core.membership_limits import MAX_REFUSAL_BYTES
from gossip.core.wire import malformed, pack
from gossip.membership.certificate import Certificate, SwarmClaim
from gossip.membership.check_membership import NOT_BY_AN_ADMIN, expired
from gossip.membership.manifest_chain import ManifestChain, pack_manifests
from gossip.membership.revocation import Revocation, parse_revocation
from gossip.membership.roster import Roster
from gossip.membership.signed import unpack_exact

TOLD: Final = frozenset({Reason.EXPIRED, Reason.REVOKED, Reason.USED_UP, Reason.NO_MEMBER, Reason.FORGED})
"""Reasons about which an invited peer can do something. The others concern strangers. `FORGED` is sent in one case: the
certificate is sound, and who granted it has been an admin and is none now."""

ASK: Final = "ask an admin for a new invite (a revoked node takes it up in a fresh folder, as its key is out for good)"
"""What the operator can do about it."""

SET_CLOCK: Final = "set this machine's clock, and start the node again"
"""The same where a membership is to begin only later, by the clock of the machine that it was made on."""

ASK_OR_SET_CLOCK: Final = "set that clock if it is wrong, and start the node again; else ask an admin for a new invite"
"""The same where a membership is over by that clock."""

_MAX_REASON_CHARS: Final = 16
_PROOF_ROOM: Final = MAX_REFUSAL_BYTES - 32
"""Bytes of a refusal, less the reason and the headers."""
_SHOWN_DIGITS: Final = 16
"""Digits of an admin's key in a message: `swarm show` prints all 64."""

_CLAIMS: Final = {
    Reason.EXPIRED: "the membership has ended, or begins ahead of its clock",
    Reason.REVOKED: "the membership was revoked",
    Reason.USED_UP: "all uses of the invite are taken, or the swarm is full",
    Reason.NO_MEMBER: "this node is not on the swarm's list",
    Reason.FORGED: "the admin who gave this node's invite is no admin any more",
}

_OF_INVITES: Final = {
    Reason.EXPIRED: "the invite has ended, or begins ahead of its clock",
    Reason.REVOKED: "the invite was revoked",
    Reason.USED_UP: "all uses of the invite are taken",
    Reason.FORGED: "the admin who made the invite is no admin any more",
}


class EndedError(LocalError):
    """Our own membership is not valid. `advice`: what its owner can do about it."""

    def __init__(self, words: str, advice: str) -> None:
        super().__init__(words)
        self.advice = advice


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """Why a member refuses us, as it says. `revocation`: what an admin signed, where there is one. `manifests`: those
    by which admins removed the one who granted us our membership, in the format of `pack_manifests`; b"" for none."""

    reason: Reason
    revocation: Revocation | None = None
    manifests: bytes = b""

    def pack(self) -> bytes:
        """Return the wire form."""
        return pack((self.reason.value, self.manifests if self.revocation is None else self.revocation.raw))


def refusal_for(
    peer: PeerId, shown: Certificate | SwarmClaim, roster: Roster, chain: ManifestChain, error: RemoteError
) -> Refusal | None:
    """Return what a peer is told that proved this key, showed this, and is refused for `error`; None: nothing."""
    if error.detail == NOT_BY_AN_ADMIN:
        return _of_former_admin(peer, shown, chain)
    admins = chain.newest.terms.admins
    certified = isinstance(shown, Certificate) and shown.peer == peer and shown.grant.admin in admins
    revocation = roster.revoked(shown) if certified and isinstance(shown, Certificate) else roster.revoked_peer(peer)
    if error.reason not in TOLD or not (certified or revocation is not None):
        return None
    return Refusal(reason=error.reason, revocation=revocation if error.reason is Reason.REVOKED else None)


def _of_former_admin(peer: PeerId, shown: Certificate | SwarmClaim, chain: ManifestChain) -> Refusal | None:
    """Return what a peer is told whose certificate holds by itself, and is by an admin who was removed. A peer that was
    away for longer than the latest change needs those before it, where there is room for them."""
    removal = chain.removal_of(shown.grant.admin) if isinstance(shown, Certificate) and shown.peer == peer else ()
    if not removal:
        return None
    fits = (packed for packed in map(pack_manifests, (removal, removal[-1:])) if len(packed) <= _PROOF_ROOM)
    return Refusal(reason=Reason.FORGED, manifests=next(fits, b""))


def parse_refusal(data: bytes) -> Refusal:
    """Parse any bytes. Raises RemoteError(OVERSIZE | MALFORMED | FORGED). It is not checked here whether an admin of
    ours signed the revocation, nor whether it is of us; and the manifests are not parsed."""
    fields = unpack_exact(data, MAX_REFUSAL_BYTES)
    reason, proof = fields.text(_MAX_REASON_CHARS), fields.binary(MAX_REFUSAL_BYTES)
    fields.end()
    if reason not in {each.value for each in TOLD}:
        raise malformed("no reason that anybody is told")
    if reason == Reason.FORGED:
        return Refusal(reason=Reason.FORGED, manifests=proof)
    return Refusal(reason=Reason(reason), revocation=parse_revocation(proof) if proof else None)


def names(revocation: Revocation, peer: PeerId, shown: Certificate | SwarmClaim) -> bool:
    """Return whether a revocation is of this peer, by what it shows."""
    if not isinstance(shown, Certificate):
        return revocation.target == peer
    return revocation.target in (*shown.lineage, shown.grant.id)


def claim_words(reason: Reason) -> str:
    """Return a reason that nobody has signed, as a clause."""
    return _CLAIMS.get(reason, reason.value)


def invite_words(refusal: Refusal, *, signed: bool) -> str:
    """Return why an invite is not answered, as a clause; `signed`: by the admin who made it."""
    out = refusal.revocation
    if out is None:
        return f"it says that {_OF_INVITES.get(refusal.reason, claim_words(refusal.reason))}"
    why = f" ({out.reason})" if out.reason else ""
    words = f"the invite was revoked by admin {out.admin.hex()[:_SHOWN_DIGITS]} on {_moment(out.issued_at)}{why}"
    return words if signed else f"it says that {words}"


def ended_words(shown: Certificate | SwarmClaim, revocation: Revocation | None, error: RemoteError, now: float) -> str:
    """Return why our own membership is not valid, by what we know ourselves; for the node's owner. `now` in unix
    seconds."""
    if revocation is not None:
        why = f" ({revocation.reason})" if revocation.reason else ""
        by = revocation.admin.hex()[:_SHOWN_DIGITS]
        return f"your membership was revoked by admin {by} on {_moment(revocation.issued_at)}{why}"
    if error.reason is Reason.EXPIRED and isinstance(shown, Certificate):
        over = shown.grant.expires is not None and expired(shown, now)
        when = f"ended on {_moment(shown.grant.expires or 0)}" if over else f"begins on {_moment(shown.newest_time)}"
        return f"your membership {when}, and this machine's clock says {_moment(int(now))}"
    if error.detail == NOT_BY_AN_ADMIN and isinstance(shown, Certificate):
        by = shown.grant.admin.hex()[:_SHOWN_DIGITS]
        return f"your membership is void: {by}, who gave your invite, is no admin any more"
    if error.reason is Reason.USED_UP:
        return f"your membership does not hold: others have taken the place that your invite gave ({error.detail})"
    return f"your membership does not hold: {error}"


def ended_advice(shown: Certificate | SwarmClaim, error: RemoteError, now: float) -> str:
    """Return what the node's owner can do about what `ended_words` says of the same."""
    if error.reason is not Reason.EXPIRED or not isinstance(shown, Certificate):
        return ASK
    return ASK_OR_SET_CLOCK if expired(shown, now) else SET_CLOCK


def _moment(unix_time: int) -> str:
    try:
        return f"{datetime.fromtimestamp(unix_time, UTC):%Y-%m-%d %H:%M} UTC"
    except (ValueError, OverflowError, OSError):  # an admin may sign any number
        return f"second {unix_time}"
