"""Members of our region that we have not met: several neighbours that tell of one make it count, and no fewer."""

import random

import pytest
from gossip_samples import GENESIS, SCOPE
from gossip_swarm import identity

from gossip.core.api import RegionLayout, RunInfo
from gossip.core.config import GossipConfig
from gossip.core.envelope import seal
from gossip.core.ids import PeerId
from gossip.core.messages import Hello
from gossip.core.statements import record_statement
from gossip.engine import Engine, NoConnections

ME = identity(1)
NEIGHBOURS = range(2, 7)
MEMBER = 50


CROWD = range(10, 13)


class Calls(NoConnections):
    """Of a LAN, but for the crowd, which calls from one network."""

    def network_of(self, peer: PeerId) -> str | None:
        return "203.0.114.0/24" if peer in {identity(number).peer_id for number in CROWD} else ""


def engine(liars: int = 1, own: str = "east") -> Engine:
    """An engine with five neighbours."""
    layout = RegionLayout(own=own, regions=("east", "west") if own else ())
    run = RunInfo(run_id=SCOPE.run, genesis=GENESIS)
    config = GossipConfig()
    rng, calls = random.Random(1), Calls()
    it = Engine(identity=ME, config=config, run=run, rng=rng, liars=liars, layout=layout, connections=calls)
    for number in NEIGHBOURS:
        tell(it, number)
    return it


def record(number: int, version: int = 1, region: str = "east") -> bytes:
    address = f"/memory/{number}/p2p/{peer(number)}"
    statement = record_statement(epoch=1, version=version, addresses=(address,), region=region)
    return seal(identity(number), SCOPE, statement).raw


def peer(number: int) -> PeerId:
    return identity(number).peer_id


def tell(
    it: Engine,
    teller: int,
    *records: bytes,
    region: str = "east",
    admitted: bool = True,
    answers: bool = False,
    at: float = 0.0,
) -> None:
    """A hello of one that tells of others, or its answer to ours."""
    own = record(teller, region=region)
    said = Hello(scope=SCOPE, genesis=GENESIS, neighbours=0, admitted=admitted, record=own, records=records).encode()
    if answers:
        it.on_hello_answer(peer(teller), said, at)
    else:
        it.on_hello(peer(teller), said, at)
    it.look_round(at)


def is_met(it: Engine, number: int) -> bool:
    return peer(number) in it.bridges.met()


def test_neighbours_are_met():
    it = engine()
    assert all(is_met(it, number) for number in (1, *NEIGHBOURS))


@pytest.mark.parametrize("liars", [1, 2])
def test_one_more_than_may_lie_have_to_tell_of_a_member(liars):
    it = engine(liars)
    for number in range(2, 2 + liars):
        tell(it, number, record(MEMBER), at=10.0)
        tell(it, number, record(MEMBER), at=20.0)
    assert peer(MEMBER) in it.bridges.members_of("east")
    assert not is_met(it, MEMBER), "liars alone have told of it, again and again"
    tell(it, 2 + liars, record(MEMBER), at=30.0)
    assert is_met(it, MEMBER)


def test_who_is_no_neighbour_counts_for_nothing():
    it = engine()
    tell(it, 2, record(MEMBER), at=10.0)
    tell(it, 20, record(MEMBER), region="west", at=10.0)
    tell(it, 21, record(MEMBER), admitted=False, at=10.0)
    assert not is_met(it, MEMBER)
    it.peer_lost(peer(2), 20.0)
    tell(it, 3, record(MEMBER), at=20.0)
    assert not is_met(it, MEMBER), "one that has told of it is no neighbour any more"
    tell(it, 4, record(MEMBER), at=30.0)
    assert is_met(it, MEMBER)


def test_keys_of_one_network_are_one_neighbour():
    it = engine()
    for number in CROWD:
        tell(it, number, record(MEMBER))
    assert len({peer(number) for number in CROWD} & it.neighbours.keys()) > 1
    assert not is_met(it, MEMBER)
    tell(it, 2, record(MEMBER), at=10.0)
    assert is_met(it, MEMBER), "and one of another"


def test_the_first_hello_of_a_neighbour_counts():
    it = engine()
    for number in (13, 14):
        tell(it, number, record(MEMBER))
    assert {peer(13), peer(14)} <= it.neighbours.keys()
    assert is_met(it, MEMBER)


def test_what_neighbours_answer_counts_as_what_they_say_by_themselves():
    it = engine()
    for number in (2, 3):
        tell(it, number, record(MEMBER), answers=True, at=10.0)
    assert is_met(it, MEMBER)


def test_neighbours_have_to_tell_of_the_same_record():
    it = engine()
    tell(it, 2, record(MEMBER, version=1), at=10.0)
    tell(it, 3, record(MEMBER, version=2), at=10.0)
    assert not is_met(it, MEMBER), "another address may be a liar's"
    tell(it, 4, record(MEMBER, version=2), at=10.0)
    assert is_met(it, MEMBER)


def test_without_regions_nothing_is_noted():
    it = engine(own="")
    for number in NEIGHBOURS:
        tell(it, number, record(MEMBER, region=""), region="", at=10.0)
    assert it._hello_records.vouched(1) == frozenset()


def test_who_publishes_is_drawn_among_them():
    """A region whose members know few others in person draws as many as one where all have met."""
    it, members = engine(), range(30, 90)
    drawn = [round for round in range(200) if it.regional_models.publishes(round)]
    for at in range(0, 60, 4):
        for number in (2, 3):
            tell(it, number, *(record(each) for each in members[at : at + 4]), at=10.0 * (1 + at))
    assert it.bridges.met() == {peer(number) for number in (1, *NEIGHBOURS, *members)}
    fewer = [round for round in range(200) if it.regional_models.publishes(round)]
    assert set(fewer) < set(drawn), "who is drawn among all is drawn among some of them"
    assert len(drawn) == pytest.approx(200 * 4 / 6, rel=0.25)
    assert len(fewer) == pytest.approx(200 * 4 / 66, rel=0.5)


def test_a_region_has_as_many_members_at_least_as_neighbours_tell_of():
    """Gaps on rings say it within a third or so, and how many links go all the way depends on it."""
    it, members = engine(), range(30, 90)
    assert it.swarm_size == 1, "neighbours may have called from anywhere"
    for at in range(0, 60, 4):
        tell(it, 2, *(record(each) for each in members[at : at + 4]), at=10.0 * (1 + at))
    assert it.swarm_size == 1, "one neighbour may lie"
    for at in range(0, 60, 4):
        tell(it, 3, *(record(each) for each in members[at : at + 4]), at=1000.0 + 10.0 * at)
    assert it.swarm_size == 61
