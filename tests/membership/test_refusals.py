"""What one that is sent away is told, and what it believes of that: an admin's word, and nobody else's."""

import pytest
from swarms import ADMIN, ADMINS, CHAIN, NOW, SWARM, Door, after, certificate, chain_of, invite, peer

from gossip.core.errors import Reason, RemoteError
from gossip.core.membership_limits import MAX_REFUSAL_BYTES
from gossip.membership import (
    Authority,
    ManifestChain,
    MembershipAdmission,
    Policy,
    Roster,
    pack_item,
    pack_manifests,
    revoke_grant,
    revoke_peer,
)
from gossip.membership.admission import EXPLAINED_BURST, EXPLAINED_PER_S, SHOWN_BURST, SHOWN_PER_S
from gossip.membership.refusal import (
    ASK_OR_SET_CLOCK,
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


TWO = (ADMIN, ADMINS[1])


def removed(allow: int = 0) -> tuple[Door, bytes]:
    """A member that knows that the first of two admins was removed; what it says to one by that admin's invite."""
    chain = chain_of(TWO)
    door = Door(chain, B, certificate(B, invite(1, ADMINS[1], chain), 1))
    listed = frozenset(peer(100 + at).peer_id for at in range(allow))
    policy = {"policy": Policy.ALLOW, "allow": listed} if allow else {}
    door.admission.apply_manifests(pack_manifests((after(chain, ADMIN, admins=(ADMINS[1],), **policy),)))
    return door, told(door, A, certificate(A, invite(chain=chain)).raw)


def test_one_by_a_former_admin_s_invite_is_shown_the_manifest_and_knows_it_for_good() -> None:
    door, said = removed()
    behind = chain_of(TWO)
    admission = member(certificate(A, invite(chain=behind)), behind)
    heard = heard_by(admission)
    assert admission.ended() is None
    words = admission.heard(C.peer_id, said)
    by = ADMIN.public_key.hex()[:16]
    ended = f"your membership is void: {by}, who gave your invite, is no admin any more"
    assert words == f"it does not take us for a member: {ended}"
    assert (admission.ended(), heard) == (ended, [(C.peer_id, Reason.FORGED, True)])
    assert behind.newest == door.chain.newest


def test_who_was_away_for_several_changes_of_admins_follows_them_all_and_sees_no_later_one() -> None:
    chain = chain_of(TWO)
    door = Door(chain, B, certificate(B, invite(1, ADMINS[1], chain), 1))
    for signer, admins in (
        (ADMIN, (*TWO, ADMINS[2])),
        (ADMINS[2], ADMINS[1:3]),
        (ADMINS[1], ADMINS[1:3]),
        (ADMINS[1], ADMINS[1:2]),
    ):
        door.admission.apply_manifests(pack_manifests((after(door.chain, signer, admins=admins),)))
    admission = member(certificate(A, invite(chain=chain)), chain)
    admission.heard(C.peer_id, told(door, A, certificate(A, invite(chain=chain)).raw))
    assert admission.ended() is not None
    assert (chain.newest.version, door.chain.newest.version) == (3, 5)


def test_manifests_that_admins_did_not_sign_are_a_claim() -> None:
    behind = chain_of(TWO)
    forged = after(behind, ADMINS[2], admins=(ADMINS[2],))
    other = after(chain_of(TWO, nonce=b"m" * 16), ADMIN, admins=(ADMINS[1],))
    for manifests in (pack_manifests((forged,)), pack_manifests((other,)), b"", b"\x91\xc4\x01x", bytes(900)):
        admission = member(certificate(A, invite(chain=behind)), behind)
        heard = heard_by(admission)
        words = admission.heard(C.peer_id, Refusal(reason=Reason.FORGED, manifests=manifests).pack())
        assert words.endswith("and says that the admin who gave this node's invite is no admin any more")
        assert heard == [(C.peer_id, Reason.FORGED, False)]
        assert (admission.ended(), behind.newest.version) == (None, 1)


def test_no_bit_of_a_shown_manifest_can_be_changed() -> None:
    _, said = removed()
    for at in range(len(said)):
        behind = chain_of(TWO)
        admission = member(certificate(A, invite(chain=behind)), behind)
        heard = heard_by(admission)
        admission.heard(C.peer_id, said[:at] + bytes([said[at] ^ 1]) + said[at + 1 :])
        admission.heard(C.peer_id, said[:at])
        assert not [each for each in heard if each[2]], at
        assert (admission.ended(), behind.newest.version) == (None, 1)


def test_another_s_certificate_by_a_former_admin_and_one_by_nobody_get_no_answer() -> None:
    door, said = removed()
    assert parse_refusal(said).manifests
    assert told(door, C, certificate(A, invite(chain=door.chain)).raw) == b""
    assert told(door, A, certificate(A, invite(admin=ADMINS[2], chain=door.chain)).raw) == b""


def test_as_much_is_shown_as_a_frame_holds() -> None:
    _, said = removed(allow=900)
    assert MAX_REFUSAL_BYTES - 4096 < len(said) <= MAX_REFUSAL_BYTES
    assert len(parse_refusal(said).manifests) > 900 * 32
    _, said = removed(allow=1024)
    assert parse_refusal(said) == Refusal(reason=Reason.FORGED)


def test_where_all_changes_do_not_fit_the_last_one_is_shown() -> None:
    chain = chain_of(TWO)
    door = Door(chain, B, certificate(B, invite(1, ADMINS[1], chain), 1))
    listed = {"policy": Policy.ALLOW, "allow": frozenset({A.peer_id, *(peer(100 + at).peer_id for at in range(600))})}
    for signer, admins in ((ADMIN, (*TWO, ADMINS[2])), (ADMINS[2], ADMINS[1:3])):
        door.admission.apply_manifests(pack_manifests((after(door.chain, signer, admins=admins, **listed),)))
    said = told(door, A, certificate(A, invite(chain=chain)).raw)
    behind = chain_of(TWO)
    assert behind.accept(tuple(door.chain)[1])
    admission = member(certificate(A, invite(chain=behind)), behind)
    admission.heard(C.peer_id, said)
    assert admission.ended() is not None
    assert behind.newest == door.chain.newest


def test_a_former_admin_s_crowd_is_shown_no_more_than_a_link_bears() -> None:
    door, _ = removed()
    granted = invite(2, uses=None, chain=door.chain)
    shown = [told(door, peer(at), certificate(peer(at), granted, 2).raw) for at in range(100, 300)]
    assert 0 < sum(map(bool, shown)) < EXPLAINED_BURST
    door.now += 2 / EXPLAINED_PER_S
    assert told(door, A, certificate(A, invite(chain=door.chain)).raw)


def test_of_one_flood_no_more_manifests_are_read_than_a_processor_bears() -> None:
    """Who reads no more takes the rest for claims, and reads again a moment later."""
    _, said = removed()
    behind = chain_of(TWO)
    door = Door(behind, A, certificate(A, invite(chain=behind)))
    junk = Refusal(reason=Reason.FORGED, manifests=pack_manifests((after(chain_of(TWO), ADMINS[2]),))).pack()
    read: list[bytes] = []
    door.admission.take_manifests = read.append
    for at in range(200):
        door.admission.heard(peer(100 + at).peer_id, junk)
    assert len(read) == SHOWN_BURST
    door.admission.take_manifests = door.admission.apply_manifests
    door.now += 1 / SHOWN_PER_S
    door.admission.heard(C.peer_id, said)
    assert door.admission.ended() is not None


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
    assert late.ended() == (
        "your membership ended on 2027-01-15 09:00 UTC, and this machine's clock says 2027-01-15 10:46 UTC"
    )
    assert late.advice() == ASK_OR_SET_CLOCK


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
