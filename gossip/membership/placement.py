"""What a member is drawn into groups by: an admin's signature under a grant that is this member's alone.

Who may choose what it is drawn by lands with its accomplices. A peer's id may be chosen, a million keys are made in a
minute; this signature may not:

- *An invite for one* is signed before anybody redeems it, and has one signature, whatever key redeems it.
- *An appointment* is signed after the key was shown. Without the admin's key nobody can tell its signature ahead,
  and an Ed25519 signature cannot be written in another way: `verify` refuses what is not in its one form.
- *A rotation* of the key changes neither.
- *An invite for several* has one signature for many keys. Who came by it has no placement.

Members who have met each other know each other's certificates, so they find the same placements; a second grant of one
key, which some hear of first, makes them differ until rosters are alike, as a member does that comes or goes.
Redeeming it under another key, and earlier, takes it away again, so this may be done more than once.
"""

from gossip.core.digests import digest_of
from gossip.core.identity import SIGNATURE_BYTES
from gossip.core.ids import Digest, PeerId
from gossip.membership.admission import MembershipAdmission
from gossip.membership.certificate import Certificate
from gossip.membership.invite import Appointment, Role
from gossip.membership.roster_index import RosterIndex


def placement(certificate: Certificate) -> Digest | None:
    """Return what the member with this certificate is drawn by; None where its grant is not for it alone."""
    grant = certificate.grant
    if not isinstance(grant, Appointment) and grant.uses != 1:
        return None
    return digest_of(grant.raw[-SIGNATURE_BYTES:])


def placement_of(admission: MembershipAdmission, roster_index: RosterIndex, peer: PeerId) -> Digest | None:
    """Return what a trainer is drawn by, of the grants that are valid now, by the roster and by what it showed us; None
    where it has none of its own. Of several grants the one with the smallest digest counts."""
    shown = admission.shown_by(peer)
    held = [*roster_index.certificates_of(peer), *([] if shown is None else [shown])]
    valid = (each for each in held if each.role is Role.TRAINER and admission.why_out(peer, each) is None)
    return min((found for each in valid if (found := placement(each)) is not None), default=None)
