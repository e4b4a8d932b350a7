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
    census = RosterIndex(roster)
    for item in added:
        roster.put(item)
        census.add(pack_item(item))
        whole = RosterIndex(roster)
        assert (census.digest, census.buckets, len(census)) == (whole.digest, whole.buckets, len(whole))
    parts = range(256)
    assert census.page(parts, 0) == whole.page(parts, 0)
    for each in added[:8]:
        assert pack_item(each) in census
    assert all(census.certificates_of(peer(100 + at).peer_id) for at in range(40))


def small_gate(most: int) -> tuple[MembershipAdmission, Roster, list[float]]:
    """A gate whose roster has so many places, and its clock."""
    roster, clock = Roster(SWARM, CHAIN.newest.terms.admins, most=most), [float(NOW)]
    own = appointment(HOME)
    gate = MembershipAdmission(
        peer=HOME.peer_id, certificate=own, chain=chain_of(), roster=roster, now=lambda: clock[0]
    )
    return gate, roster, clock


def refusal(gate: MembershipAdmission, shown: Certificate) -> Reason | None:
    try:
        gate.admit(shown.peer, shown.raw)
    except RemoteError as error:
        return error.reason
    return None


def test_newcomers_are_added_and_those_that_put_another_out_are_counted_anew() -> None:
    gate, roster, _ = small_gate(most=3)
    spread, shared = AntiEntropy(gate), invite(uses=None)
    gate.learned = lambda item: spread.changed((item,))
    before = spread.census
    for at in range(4):
        gate.admit(peer(100 + at).peer_id, certificate(peer(100 + at), shared, at=NOW - at).raw)
        assert (spread.census is before) == (at < 2)  # with our own the roster is full then
        assert spread.census.digest == RosterIndex(roster).digest


def test_those_who_put_others_out_come_at_a_pace() -> None:
    gate, _, clock = small_gate(most=2)
    shared = invite(uses=None)
    claims = [certificate(peer(100 + at), shared, at=NOW - at) for at in range(DISPLACING_BURST + 3)]
    refused = [refusal(gate, each) for each in claims]
    assert refused == [None] * (DISPLACING_BURST + 1) + [Reason.USED_UP] * 2
    clock[0] += 1
    assert refusal(gate, claims[-1]) is None


@pytest.mark.parametrize("told", [False, True])
def test_nobody_is_made_an_heir_by_others(told: bool) -> None:
    """A thief's key that names an honest member its successor hands nothing on to it."""
    door, shared = Door(), invite(uses=2)
    mine = certificate(VICTIM, invite(7), 7)
    door.gate.admit(VICTIM.peer_id, mine.raw)
    if told:
        gift = rotated(certificate(A, shared), rotate(A, VICTIM.peer_id, issued_at=NOW))
        assert door.gate.apply([pack_item(gift)]).error is None
    assert door.gate.predecessors(VICTIM.peer_id) == ()


def test_who_shows_its_former_key_is_its_heir() -> None:
    gate: MembershipAdmission = Door().gate
    gate.admit(B.peer_id, rotated(certificate(A), rotate(A, B.peer_id, issued_at=NOW)).raw)
    assert gate.predecessors(B.peer_id) == (A.peer_id,)
