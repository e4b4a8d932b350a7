"""What one that is sent away is told, and what it believes of that: an admin's word, and nobody else's."""

import pytest
from swarms import ADMIN, ADMINS, CHAIN, NOW, SWARM, Door, after, certificate, chain_of, invite, peer

from gossip.core.errors import Reason, RemoteError
from gossip.membership import (
    Authority,
    ManifestChain,
    MembershipAdmission,
    Roster,
    pack_item,
    pack_manifests,
    revoke_grant,
    revoke_peer,
)
from gossip.membership.refusal import (
    ASK,
    MAX_REFUSAL_BYTES,
    SET_CLOCK,
    TOLD,
    EndedError,
    Refusal,
    parse_refusal,
)

A, B, C = peer(11), peer(12), peer(13)


def told(door: Door, one: object, shown: bytes) -> bytes:
    """What the door says to one that it refuses."""
    with pytest.raises(RemoteError) as caught:
        door.admission.admit(one.peer_id, shown)  # type: ignore[attr-defined]
    return door.admission.explain(one.peer_id, shown, caught.value)  # type: ignore[attr-defined]


def member(shown: object, chain: ManifestChain = CHAIN, at: float = NOW) -> MembershipAdmission:
    """A member's own gate: what it believes."""
    return MembershipAdmission(
        peer=A.peer_id,
        certificate=shown,  # type: ignore[arg-type]
        chain=chain,
        roster=Roster(chain.swarm, chain.newest.terms.admins),
        now=lambda: at,
    )


def heard_by(admission: MembershipAdmission) -> list[tuple[str, Reason, bool]]:
    """What the gate passes on of refusals."""
    heard: list[tuple[str, Reason, bool]] = []
    admission.refused = lambda by, refusal, signed: heard.append((by, refusal.reason, signed))
    return heard


@pytest.mark.parametrize("of", ["peer", "invite"])
def test_one_that_is_revoked_is_shown_the_admin_s_word_and_knows_it_for_good(of: str) -> None:
    door, granted = Door(), invite()
    shown = certificate(A, granted)
    out = (
        revoke_peer(ADMIN, SWARM, A.peer_id, issued_at=NOW, reason="left the lab")
        if of == "peer"
        else revoke_grant(ADMIN, SWARM, granted.id, issued_at=NOW, reason="left the lab")
    )
    door.admission.apply([pack_item(out)])
    said = told(door, A, shown.raw)
    assert parse_refusal(said).revocation == out
    admission = member(shown)
    heard, learned = heard_by(admission), []
    admission.learned = learned.append
    assert admission.ended() is None
    words = admission.heard(C.peer_id, said)
    day = "2027-01-15 08:00 UTC"
    ended = f"your membership was revoked by admin {ADMIN.public_key.hex()[:16]} on {day} (left the lab)"
    assert words == f"it does not take us for a member: {ended}"
    assert admission.ended() == ended
    assert heard == [(C.peer_id, Reason.REVOKED, True)]
    assert learned == [pack_item(out)]
    assert not [item for item in admission.roster.revocations if item != out]


def test_whose_admin_was_removed_is_told_that() -> None:
    """Nothing about it was forged, which is the reason's name."""
    chain = chain_of()
    admission = member(certificate(A), chain)
    admission.apply_manifests(pack_manifests((after(chain, ADMIN, admins=(ADMIN, ADMINS[1])),)))
    assert admission.ended() is None
    admission.apply_manifests(pack_manifests((after(chain, ADMINS[1], admins=(ADMINS[1],)),)))
    by = ADMIN.public_key.hex()[:16]
    assert admission.ended() == f"your membership is void: {by}, who gave your invite, is no admin any more"


@pytest.mark.parametrize(
    "out",
    [
        revoke_peer(Authority(B.seed), SWARM, A.peer_id, issued_at=NOW),
        revoke_peer(ADMINS[1], SWARM, A.peer_id, issued_at=NOW),
        revoke_peer(ADMIN, SWARM, B.peer_id, issued_at=NOW),
        revoke_grant(ADMIN, SWARM, invite(3).id, issued_at=NOW),
        revoke_peer(ADMIN, chain_of(nonce=b"m" * 16).swarm, A.peer_id, issued_at=NOW),
    ],
    ids=["by a member", "by another swarm's admin", "of another peer", "of another invite", "in another swarm"],
)
def test_what_no_admin_has_signed_of_us_is_its_word_alone(out: object) -> None:
    admission = member(certificate(A))
    heard = heard_by(admission)
    words = admission.heard(C.peer_id, Refusal(reason=Reason.REVOKED, revocation=out).pack())  # type: ignore[arg-type]
    assert words.endswith("and says that the membership was revoked")
    assert heard == [(C.peer_id, Reason.REVOKED, False)]
    assert admission.ended() is None
    assert not admission.roster.revocations


@pytest.mark.parametrize("reason", sorted(TOLD))
def test_a_reason_without_a_signature_ends_nothing(reason: Reason) -> None:
    admission = member(certificate(A))
    heard = heard_by(admission)
    assert "and says that " in admission.heard(C.peer_id, Refusal(reason=reason).pack())
    assert heard == [(C.peer_id, reason, False)]
    assert admission.ended() is None


def test_a_signature_that_does_not_hold_is_nothing() -> None:
    admission = member(certificate(A))
    heard = heard_by(admission)
    good = Refusal(reason=Reason.REVOKED, revocation=revoke_peer(ADMIN, SWARM, A.peer_id, issued_at=NOW)).pack()
    for at in range(len(good)):
        admission.heard(C.peer_id, good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
        admission.heard(C.peer_id, good[:at])
    admission.heard(C.peer_id, bytes(MAX_REFUSAL_BYTES + 1))
    assert not [each for each in heard if each[2]]
    assert admission.ended() is None


def test_strangers_hear_nothing() -> None:
    door = Door()
    granted = invite(1)
    assert told(door, A, b"") == b""
    assert told(door, A, b"\x00") == b""
    assert told(door, A, certificate(A, invite(admin=ADMINS[1])).raw) == b"", "an invite that no admin signed"
    assert told(door, A, certificate(A, invite(chain=chain_of(nonce=b"m" * 16))).raw) == b"", "of another swarm"
    door.admission.apply([pack_item(revoke_grant(ADMIN, SWARM, granted.id, issued_at=NOW, reason="x"))])
    assert told(door, B, certificate(A, granted, 1).raw) == b"", "another's certificate, replayed"


def test_who_comes_too_late_is_told_so_and_of_nobody_else() -> None:
    door = Door()
    door.admission.admit(B.peer_id, certificate(B).raw)
    said = told(door, A, certificate(A).raw)
    assert parse_refusal(said) == Refusal(reason=Reason.USED_UP)
    ended = Door()
    ended.now = NOW + 10_000
    assert parse_refusal(told(ended, A, certificate(A).raw)) == Refusal(reason=Reason.EXPIRED)


def test_an_end_date_needs_nobody_s_word() -> None:
    late = member(certificate(A))
    late._now = lambda: NOW + 10_000.0
    assert late.ended() == "your membership ended on 2027-01-15 09:00 UTC"
    assert late.advice() == ASK


def test_a_clock_that_was_set_back_is_named_and_not_an_end_that_has_not_come() -> None:
    """Who joined while its clock was ahead is refused, at first by itself: an admin could not help it."""
    now = [float(NOW)]
    admission = MembershipAdmission(
        peer=A.peer_id,
        certificate=certificate(A),
        chain=CHAIN,
        roster=Roster(SWARM, CHAIN.newest.terms.admins),
        now=lambda: now[0],
    )
    now[0] -= 7200
    words = admission.ended()
    assert words is not None
    assert words.startswith(
        "your membership begins on 2027-01-15 08:00 UTC, and this machine's clock says 2027-01-15 06:00"
    )
    assert admission.advice() == SET_CLOCK
    with pytest.raises(EndedError, match="begins on") as begun:
        MembershipAdmission(
            peer=A.peer_id,
            certificate=certificate(A),
            chain=CHAIN,
            roster=Roster(SWARM, CHAIN.newest.terms.admins),
            now=lambda: now[0],
        )
    assert begun.value.advice == SET_CLOCK
    now[0] += 7200
    assert admission.ended() is None
