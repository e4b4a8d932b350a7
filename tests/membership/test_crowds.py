"""What a crowd at the door costs, and whom a rotation can name."""

import random

import pytest
from swarms import ADMINS, CHAIN, HOME, NOW, SWARM, Door, appointment, certificate, chain_of, invite, peer

from gossip.core.errors import Reason, RemoteError
from gossip.membership import Certificate, Roster, pack_item, revoke_peer, rotate, rotated
from gossip.membership.admission import DISPLACING_BURST, MembershipAdmission
from gossip.membership.anti_entropy import AntiEntropy
from gossip.membership.roster import Item
from gossip.membership.roster_index import RosterIndex

A, B, VICTIM = peer(11), peer(12), peer(13)


def items(count: int) -> list[Item]:
    shared = invite(uses=None)
    return [
        *(certificate(peer(100 + at), shared, at=NOW - at) for at in range(count)),
        *(revoke_peer(ADMINS[0], SWARM, peer(200 + at).peer_id, issued_at=NOW, reason="") for at in range(count)),
    ]


def test_a_census_that_is_added_to_is_one_that_is_made_anew() -> None:
    roster, added = Roster(SWARM, CHAIN.newest.terms.admins), items(40)
    random.Random(1).shuffle(added)
    roster_index = RosterIndex(roster)
    for item in added:
        roster.put(item)
        roster_index.add(pack_item(item))
        whole = RosterIndex(roster)
        assert (roster_index.digest, roster_index.buckets, len(roster_index)) == (
            whole.digest,
            whole.buckets,
            len(whole),
        )
    parts = range(256)
    assert roster_index.page(parts, 0) == whole.page(parts, 0)
    for each in added[:8]:
        assert pack_item(each) in roster_index
    assert all(roster_index.certificates_of(peer(100 + at).peer_id) for at in range(40))


def small_gate(most: int) -> tuple[MembershipAdmission, Roster, list[float]]:
    """A gate whose roster has so many places, and its clock."""
    roster, clock = Roster(SWARM, CHAIN.newest.terms.admins, most=most), [float(NOW)]
    own = appointment(HOME)
    admission = MembershipAdmission(
        peer=HOME.peer_id, certificate=own, chain=chain_of(), roster=roster, now=lambda: clock[0]
    )
    return admission, roster, clock


def refusal(admission: MembershipAdmission, shown: Certificate) -> Reason | None:
    try:
        admission.admit(shown.peer, shown.raw)
    except RemoteError as error:
        return error.reason
    return None


def test_newcomers_are_added_and_those_that_put_another_out_are_counted_anew() -> None:
    admission, roster, _ = small_gate(most=3)
    anti_entropy, shared = AntiEntropy(admission), invite(uses=None)
    admission.learned = lambda item: anti_entropy.changed((item,))
    before = anti_entropy.roster_index
    for at in range(4):
        admission.admit(peer(100 + at).peer_id, certificate(peer(100 + at), shared, at=NOW - at).raw)
        assert (anti_entropy.roster_index is before) == (at < 2)  # with our own the roster is full then
        assert anti_entropy.roster_index.digest == RosterIndex(roster).digest


def test_those_who_put_others_out_come_at_a_pace() -> None:
    admission, _, clock = small_gate(most=2)
    shared = invite(uses=None)
    claims = [certificate(peer(100 + at), shared, at=NOW - at) for at in range(DISPLACING_BURST + 3)]
    refused = [refusal(admission, each) for each in claims]
    assert refused == [None] * (DISPLACING_BURST + 1) + [Reason.USED_UP] * 2
    clock[0] += 1
    assert refusal(admission, claims[-1]) is None


@pytest.mark.parametrize("told", [False, True])
def test_nobody_is_made_an_heir_by_others(told: bool) -> None:
    """A thief's key that names an honest member its successor hands nothing on to it."""
    door, shared = Door(), invite(uses=2)
    mine = certificate(VICTIM, invite(7), 7)
    door.admission.admit(VICTIM.peer_id, mine.raw)
    if told:
        gift = rotated(certificate(A, shared), rotate(A, VICTIM.peer_id, issued_at=NOW))
        assert door.admission.apply([pack_item(gift)]).error is None
    assert door.admission.predecessors(VICTIM.peer_id) == ()


def test_who_shows_its_former_key_is_its_heir() -> None:
    admission: MembershipAdmission = Door().admission
    admission.admit(B.peer_id, rotated(certificate(A), rotate(A, B.peer_id, issued_at=NOW)).raw)
    assert admission.predecessors(B.peer_id) == (A.peer_id,)
