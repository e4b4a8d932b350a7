"""A bootstrap node among keys of one host, and of many, that invent runs: the real one stays known."""

import random
from collections.abc import Iterable

import pytest
from gossip_samples import GENESIS, SCOPE, record
from gossip_swarm import identity

from gossip.bootstrap_state import MAX_OF_NETWORK, MAX_RUNS, RUNS_OF_NETWORK, BootstrapState
from gossip.core.digests import swarm_id_of
from gossip.core.envelope import Scope, seal
from gossip.core.identity import Identity
from gossip.core.ids import PeerId, RunId
from gossip.core.messages import Hello, parse_hello
from gossip.core.statements import record_statement

ME = Identity(b"\x63" * 32)
HOST, LAB = "203.0.113.0/24", "192.0.2.0/24"
REAL = SCOPE.run
ASKER = identity(999)


def run(number: int) -> RunId:
    return RunId(number.to_bytes(16, "big"))


def of_many(key: Identity) -> str:
    """A network for each key."""
    return f"net of {key.peer_id}"


@pytest.fixture
def it() -> BootstrapState:
    return BootstrapState(ME, swarm_id_of("p2ptrain"), random.Random(1))


def hello(key: Identity, run_id: RunId, *, told: bool = True) -> bytes:
    scope = Scope(swarm=SCOPE.swarm, run=run_id)
    addresses = (f"/memory/1/p2p/{key.peer_id}",)
    own = seal(key, scope, record_statement(epoch=1, version=1, addresses=addresses)).raw if told else b""
    return Hello(scope=scope, genesis=GENESIS, neighbours=0, admitted=True, record=own).encode()


def come(
    it: BootstrapState, keys: Iterable[Identity], run_id: RunId, network, *, answer: bool = True, now: float = 0.0
):
    """Each says hello in the name of a run, and answers at its address."""
    for key in keys:
        seen_in = network(key) if callable(network) else network
        it.on_hello(key.peer_id, hello(key, run_id), now, seen_in)
        if answer:
            it.answered(key.peer_id, f"/memory/1/p2p/{key.peer_id}", now, seen_in)


def told(it: BootstrapState, run_id: RunId = REAL) -> set[PeerId]:
    """Whom a newcomer to a run is told of, who comes when nothing more happens."""
    known = it._runs.get((run_id, GENESIS))
    return set() if known is None else {each.peer for each in known.peerstore.known()}


def members(count: int, first: int = 1) -> list[Identity]:
    return [identity(number) for number in range(first, first + count)]


def invent(it: BootstrapState, keys: list[Identity], network, runs: int = MAX_RUNS, *, rounds: int = 1) -> None:
    """Every key in every run, as many runs as are known, again and again."""
    for turn in range(rounds):
        for number in range(runs):
            come(it, keys, run(turn * runs + number + 1), network, now=100.0 * (turn * runs + number))


def test_eleven_keys_of_one_host_in_eight_invented_runs_push_out_no_run_with_ten_members(it):
    """It was forgotten for one in which eleven keys of one host had answered."""
    real = members(10)
    come(it, real, REAL, of_many)
    invent(it, members(11, 100), HOST)
    assert told(it) == {key.peer_id for key in real}
    answer = parse_hello(it.on_hello(ASKER.peer_id, hello(ASKER, REAL, told=False), 1e4, "net"))
    assert len(answer.records) == 10
    assert it.runs == MAX_RUNS


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [1, 20])
def test_nor_one_whose_members_are_all_in_one_lab(it, rounds):
    """One network vouches for each. The lab's was there first."""
    real = members(10)
    come(it, real, REAL, LAB)
    invent(it, members(11, 100), HOST, rounds=rounds)
    assert told(it) == {key.peer_id for key in real}


def test_nor_when_the_crowd_was_there_first(it):
    invent(it, members(11, 100), HOST)
    real = members(10)
    come(it, real, REAL, LAB, now=2000.0)
    for turn in range(5):
        come(it, members(11, 200), run(500 + turn), HOST, now=3000.0 + 100 * turn)
    assert told(it) == {key.peer_id for key in real}


def test_nor_a_new_one_before_its_first_member_has_answered(it):
    """The host's own newest goes, not the newest of all."""
    come(it, members(3), REAL, of_many)
    invent(it, members(11, 100), HOST)
    come(it, members(1, 50), run(999), LAB, answer=False)
    for number in range(600, 620):
        come(it, members(1, number), run(number), HOST)
    assert told(it, run(999))
    assert told(it)


def test_a_run_that_several_networks_vouch_for_is_not_pushed_out_by_ones_that_one_does_however_many(it):
    real = members(2, 50)
    come(it, real, REAL, of_many)
    for number in range(1, 100):  # each by another host
        come(it, members(3, 1000 + 3 * number), run(number), f"host {number}")
    assert told(it) == {key.peer_id for key in real}


def test_the_one_known_longest_stays_whoever_vouches_for_others(it):
    """Twenty networks in every one of eight invented runs."""
    real = members(2)
    come(it, real, REAL, LAB)
    invent(it, members(20, 100), of_many, rounds=3)
    assert told(it) == {key.peer_id for key in real}


def test_but_a_third_run_that_one_network_vouches_for_loses_to_a_crowd_in_five(it):
    """What is not promised: two networks for each of five invented runs, each network in two."""
    come(it, members(2, 10), run(901), "other lab")
    come(it, members(2, 20), run(902), "third lab")
    come(it, members(2), REAL, LAB)
    crowd = members(5, 100)
    for number in range(5):
        come(it, [crowd[number], crowd[(number + 1) % 5]], run(number + 1), of_many)
    assert told(it)
    come(it, crowd[:1], run(6), of_many)
    assert not told(it)
    assert told(it, run(901))
    assert told(it, run(902))


def test_a_network_counts_in_two_runs_alone(it):
    invent(it, members(11, 100), HOST)
    assert sorted(it._weights().values()) == [0] * (MAX_RUNS - RUNS_OF_NETWORK) + [1] * RUNS_OF_NETWORK


@pytest.mark.slow
def test_one_network_has_an_eighth_of_all_records_and_a_whole_run_of_others_is_whole(it):
    real = members(30)
    come(it, real, REAL, of_many)
    for number in range(1, MAX_RUNS):
        come(it, members(100, 1000 * number), run(number), HOST, answer=number % 2 == 0)
    assert sum(each.peerstore.count_of(HOST) for each in it._runs.values()) == MAX_OF_NETWORK
    assert told(it) == {key.peer_id for key in real}


def test_a_lab_of_two_hundred_is_known_whole(it):
    come(it, members(200), REAL, LAB)
    assert len(told(it)) == 200
    assert it.members == 200


def test_a_restarted_node_knows_the_real_run_among_invented_ones(it):
    come(it, members(10), REAL, of_many)
    invent(it, members(11, 100), HOST)
    again = BootstrapState(ME, swarm_id_of("p2ptrain"), random.Random(1))
    again.recall(it.dump())
    for number in range(600, 620):
        come(again, members(1, number), run(number), HOST)
    assert len(told(again)) == 10


def test_a_newcomer_is_told_of_members_in_all_networks(it):
    real = members(10)
    come(it, real, REAL, of_many)
    come(it, members(150, 100), REAL, HOST)
    answer = parse_hello(it.on_hello(ASKER.peer_id, hello(ASKER, REAL, told=False), 1e4, "net"))
    raws = set(answer.records)
    assert {record(by=key) for key in real} <= raws
