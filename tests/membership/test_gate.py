"""Who is let in: each stranger of the threat model that membership decides about, each way to stop being a member."""

import pytest
from swarms import (
    ADMIN,
    ADMINS,
    CHAIN,
    HOME,
    NOW,
    SWARM,
    Door,
    after,
    appointment,
    certificate,
    chain_of,
    invite,
    items_of,
    peer,
    policy_chain,
)

from gossip.core.errors import LocalError, Reason, RemoteError
from gossip.core.membership_limits import MAX_CERTIFICATE_BYTES, TOLERANCE_S
from gossip.membership import (
    Authority,
    Policy,
    Role,
    SwarmClaim,
    appoint,
    appointed,
    pack_item,
    pack_manifests,
    revoke_grant,
    revoke_peer,
    rotate,
    rotated,
)
from gossip.transport.base import MAX_CREDENTIALS, Admission

A, B, C = peer(11), peer(12), peer(13)


def test_a_gate_is_an_admission_and_its_bound_is_the_transports():
    admission: Admission = Door().admission
    assert admission.credentials() == appointment(HOME).raw
    assert MAX_CERTIFICATE_BYTES == MAX_CREDENTIALS


def test_an_invited_peer_comes_in_with_its_role_and_is_recorded():
    door = Door()
    shown = certificate(A, invite(role=Role.OBSERVER))
    assert door.refusal(A.peer_id, shown) is None
    assert door.admission.role_of(A.peer_id) is Role.OBSERVER
    assert door.learned == items_of(shown)
    assert door.refusal(A.peer_id, shown) is None  # it comes back
    assert len(door.learned) == 1
    with pytest.raises(RemoteError) as caught:
        door.admission.require(A.peer_id, Role.TRAINER)
    assert caught.value.reason is Reason.WRONG_ROLE
    door.admission.forget(A.peer_id)
    with pytest.raises(RemoteError) as caught:
        door.admission.require(A.peer_id, Role.OBSERVER)
    assert caught.value.reason is Reason.NO_MEMBER


@pytest.mark.parametrize("shown", [b"", SwarmClaim(swarm=SWARM).raw])
def test_a_stranger_without_an_invite(shown):
    assert Door().refusal(A.peer_id, shown) is Reason.NO_MEMBER


@pytest.mark.parametrize("shown", [b"\x00", b"\xc0", bytes(4096), b"p2p1" * 10, certificate(A).raw[:-1]])
def test_a_stranger_that_says_anything(shown):
    assert Door().refusal(A.peer_id, shown) is Reason.MALFORMED


def test_a_stranger_that_says_too_much():
    assert Door().refusal(A.peer_id, bytes(MAX_CREDENTIALS + 1)) is Reason.OVERSIZE


def test_a_member_of_another_swarm():
    other = chain_of(nonce=b"m" * 16)
    shown = certificate(A, invite(chain=other))
    assert Door().refusal(A.peer_id, shown) is Reason.WRONG_SWARM
    assert Door().refusal(A.peer_id, SwarmClaim(swarm=other.swarm).raw) is Reason.WRONG_SWARM


def test_an_invite_that_no_admin_signed():
    assert Door().refusal(A.peer_id, certificate(A, invite(admin=ADMINS[1]))) is Reason.FORGED
    assert Door().refusal(A.peer_id, appointment(A, ADMINS[1])) is Reason.FORGED


def test_a_member_cannot_invite():
    shown = certificate(A, invite(admin=Authority(B.seed)))
    assert Door().refusal(A.peer_id, shown) is Reason.FORGED


def test_the_certificate_of_another_peer_replayed():
    door = Door()
    assert door.refusal(B.peer_id, certificate(A)) is Reason.FORGED
    assert door.refusal(B.peer_id, appointment(HOME)) is Reason.FORGED


def test_an_invite_stolen_when_it_is_used_up():
    door = Door()
    assert door.refusal(A.peer_id, certificate(A)) is None
    assert door.refusal(B.peer_id, certificate(B)) is Reason.USED_UP
    # A thief's clock does not help at a door that knows the member.
    assert door.refusal(B.peer_id, certificate(B, at=NOW - 100)) is Reason.USED_UP
    assert door.refusal(A.peer_id, certificate(A)) is None


def test_of_two_redemptions_that_met_late_the_earlier_stays():
    door = Door()
    assert door.refusal(A.peer_id, certificate(A)) is None
    applied = door.admission.apply(items_of(certificate(B, at=NOW - 1)))
    assert applied.cut == {A.peer_id}
    assert door.refusal(A.peer_id, certificate(A)) is Reason.USED_UP
    assert door.refusal(B.peer_id, certificate(B, at=NOW - 1)) is None


def test_an_expired_invite():
    door = Door()
    shown = certificate(A, invite(expires=NOW + 10))
    door.now = NOW + 10 + TOLERANCE_S
    assert door.refusal(A.peer_id, shown) is None
    door.now += 1
    assert door.refusal(A.peer_id, shown) is Reason.EXPIRED
    assert door.admission.role_of(A.peer_id) is None
    assert door.admission.cut() == {A.peer_id}
    assert door.admission.cut() == frozenset()


@pytest.mark.parametrize(("ahead", "reason"), [(TOLERANCE_S, None), (TOLERANCE_S + 1, Reason.EXPIRED)])
def test_clocks_may_differ_by_five_minutes(ahead, reason):
    assert Door().refusal(A.peer_id, certificate(A, at=NOW + ahead)) is reason
    late = appointed(appoint(ADMIN, SWARM, A.peer_id, role=Role.RELAY, issued_at=NOW + ahead))
    assert Door().refusal(A.peer_id, late) is reason
    changed = rotated(certificate(A), rotate(A, B.peer_id, issued_at=NOW + ahead))
    assert Door().refusal(B.peer_id, changed) is reason


def test_nobody_redeems_before_the_invite():
    with pytest.raises(LocalError, match="before it was issued"):
        certificate(A, at=NOW - 60 - TOLERANCE_S - 1)


@pytest.mark.parametrize("of", ["peer", "invite"])
def test_a_revoked_member_is_cut_and_stays_out(of):
    door = Door()
    shown, other = certificate(A), certificate(B, invite(1), 1)
    assert (door.refusal(A.peer_id, shown), door.refusal(B.peer_id, other)) == (None, None)
    if of == "peer":
        out = revoke_peer(ADMIN, SWARM, A.peer_id, issued_at=NOW, reason="left the lab")
    else:
        out = revoke_grant(ADMIN, SWARM, shown.grant.id, issued_at=NOW)
    applied = door.admission.apply([pack_item(out)])
    assert (applied.new, applied.cut, applied.error) == ((pack_item(out),), {A.peer_id}, None)
    assert door.refusal(A.peer_id, shown) is Reason.REVOKED
    assert door.admission.role_of(A.peer_id) is None
    assert door.admission.role_of(B.peer_id) is Role.TRAINER
    assert door.admission.apply([pack_item(out)]).new == ()


def test_members_cannot_revoke():
    door = Door()
    forged = revoke_peer(B, SWARM, A.peer_id, issued_at=NOW)
    elsewhere = revoke_peer(ADMIN, chain_of(nonce=b"m" * 16).swarm, A.peer_id, issued_at=NOW)
    applied = door.admission.apply([pack_item(forged), pack_item(elsewhere), *items_of(certificate(A))])
    assert applied.new == tuple(items_of(certificate(A)))
    assert applied.error is not None
    assert applied.error.reason is Reason.FORGED


def test_a_rotated_key_keeps_the_membership_and_its_use():
    door = Door()
    first = certificate(A)
    second = rotated(first, rotate(A, B.peer_id, issued_at=NOW + 1))
    assert door.refusal(A.peer_id, first) is None
    assert door.refusal(B.peer_id, second) is None
    assert door.admission.role_of(B.peer_id) is Role.TRAINER
    assert door.refusal(A.peer_id, first) is Reason.REVOKED  # a stolen old key
    assert door.admission.cut() == {A.peer_id}
    assert door.refusal(A.peer_id, certificate(A, invite(1), 1)) is Reason.REVOKED  # nor by another invite


def test_a_second_successor_of_one_key_is_refused():
    door = Door()
    assert door.refusal(B.peer_id, rotated(certificate(A), rotate(A, B.peer_id, issued_at=NOW))) is None
    assert door.refusal(C.peer_id, rotated(certificate(A), rotate(A, C.peer_id, issued_at=NOW - 9))) is Reason.REVOKED


@pytest.mark.parametrize("out", [A, B, C])
def test_revoking_any_key_of_a_lineage_revokes_the_member(out):
    door = Door()
    shown = rotated(certificate(A), rotate(A, B.peer_id, issued_at=NOW))
    shown = rotated(shown, rotate(B, C.peer_id, issued_at=NOW))
    assert door.refusal(C.peer_id, shown) is None
    assert door.admission.apply([pack_item(revoke_peer(ADMIN, SWARM, out.peer_id, issued_at=NOW))]).cut == {C.peer_id}
    assert door.refusal(C.peer_id, shown) is Reason.REVOKED


def test_an_open_swarm_lets_everybody_in_but_the_revoked():
    door = Door(policy_chain(Policy.OPEN))
    assert door.refusal(A.peer_id, b"") is None
    assert door.admission.role_of(A.peer_id) is Role.TRAINER
    assert door.refusal(B.peer_id, SwarmClaim(swarm=door.chain.swarm).raw) is None
    out = revoke_peer(ADMIN, door.chain.swarm, A.peer_id, issued_at=NOW)
    assert door.admission.apply([pack_item(out)]).cut == {A.peer_id}
    assert door.refusal(A.peer_id, b"") is Reason.REVOKED


def test_an_allow_list_is_kept_to():
    door = Door(policy_chain(Policy.ALLOW, A, HOME))
    chain = door.chain
    assert door.refusal(A.peer_id, b"") is None
    assert door.refusal(B.peer_id, b"") is Reason.NO_MEMBER
    assert door.refusal(B.peer_id, certificate(B, invite(chain=chain))) is Reason.NO_MEMBER
    assert door.refusal(A.peer_id, certificate(A, invite(chain=chain, role=Role.RELAY))) is None
    assert door.admission.role_of(A.peer_id) is Role.RELAY
    assert door.refusal(B.peer_id, appointment(B, chain=chain)) is None


def test_a_swarm_has_as_many_members_as_its_manifest_says():
    door = Door()
    full = after(door.chain, ADMIN, max_members=2)
    door.admission.apply_manifests(pack_manifests((full,)))
    assert door.refusal(A.peer_id, certificate(A)) is None
    late = certificate(B, invite(1, expires=None), 1)
    assert door.refusal(B.peer_id, late) is Reason.USED_UP
    assert door.refusal(A.peer_id, certificate(A)) is None
    door.admission.apply([pack_item(revoke_peer(ADMIN, SWARM, A.peer_id, issued_at=NOW))])
    assert door.refusal(B.peer_id, late) is None


def test_a_new_manifest_cuts_those_whom_it_leaves_out():
    door = Door()
    assert door.refusal(A.peer_id, certificate(A)) is None
    strict = after(door.chain, ADMIN, policy=Policy.ALLOW, allow=frozenset({HOME.peer_id}))
    applied = door.admission.apply_manifests(pack_manifests((strict,)))
    assert (applied.cut, applied.error) == ({A.peer_id}, None)
    assert applied.new == (pack_manifests((*CHAIN, strict)),)
    assert door.admission.apply_manifests(applied.new[0]).new == ()


def test_what_a_former_admin_granted_and_revoked_is_void():
    door = Door()
    both = after(door.chain, ADMIN, admins=(ADMIN, ADMINS[1]))
    assert door.admission.apply_manifests(pack_manifests((both,))).error is None
    guest = certificate(A, invite(3, ADMINS[1]), 3)
    assert door.refusal(A.peer_id, guest) is None
    assert door.refusal(B.peer_id, certificate(B)) is None
    out = revoke_peer(ADMINS[1], SWARM, B.peer_id, issued_at=NOW)
    assert door.admission.apply([pack_item(out)]).cut == {B.peer_id}
    one = after(door.chain, ADMIN)
    assert door.admission.apply_manifests(pack_manifests((one,))).cut == {A.peer_id}
    assert door.refusal(A.peer_id, guest) is Reason.FORGED
    assert door.refusal(B.peer_id, certificate(B)) is None
    assert door.roster.revocations == ()


def test_an_unsigned_manifest_changes_nothing():
    door = Door()
    applied = door.admission.apply_manifests(pack_manifests((after(door.chain, policy=Policy.OPEN),)))
    assert applied.error is not None
    assert (applied.error.reason, applied.new) == (Reason.FORGED, ())
    assert door.refusal(A.peer_id, b"") is Reason.NO_MEMBER


def test_a_node_whose_own_membership_does_not_hold_is_told_at_the_start():
    with pytest.raises(LocalError, match="another peer"):
        Door(node=A, shows=certificate(B))
    with pytest.raises(LocalError, match="your membership ended on 20"):
        Door(node=A, shows=certificate(A), now=NOW + 3600 + TOLERANCE_S + 1)


def test_those_who_came_first_are_forgotten_first(monkeypatch):
    monkeypatch.setattr("gossip.membership.admission.MAX_REMEMBERED", 2)
    door = Door()
    for number in range(3):
        assert door.refusal(peer(number).peer_id, certificate(peer(number), invite(number), number)) is None
    assert [door.admission.role_of(peer(number).peer_id) for number in range(3)] == [None, Role.TRAINER, Role.TRAINER]


def test_a_full_roster_admits_no_counted_newcomer(monkeypatch):
    door = Door()
    monkeypatch.setattr(door.roster, "_most", 2)
    unlimited = invite(5, uses=None)
    assert door.refusal(A.peer_id, certificate(A)) is None
    assert door.refusal(B.peer_id, certificate(B, invite(1), 1, at=NOW + 5)) is Reason.USED_UP
    assert door.refusal(C.peer_id, certificate(C, unlimited, 5)) is None  # let in, and not listed
    assert len(door.roster) == 2
