"""The table: who gets in, who stays, who is told of. Nothing here is a network's: places, records and addresses."""

import random

import pytest
from gossip_samples import SCOPE
from hypothesis import given
from hypothesis import strategies as st
from kademlia_swarm import member, place, seen, table

from gossip.core.envelope import Scope
from gossip.core.ids import PeerId, RunId, SwarmId
from gossip.core.networks import network_of
from gossip.core.statements import PeerRecord
from gossip.discovery import routing_table
from gossip.discovery.routing_table import (
    BUCKET,
    MAX_ENTRIES,
    MAX_MISSES,
    PER_NETWORK,
    STALE_S,
    RoutingTable,
    place_of_id,
)

ME = "me"
FAR = 255


def bucket_of(record: PeerRecord) -> int:
    return (place(record.peer) ^ place(PeerId(f"peer-{ME}"))).bit_length() - 1


def of_bucket(index: int, count: int, address: str = "/memory/{}") -> list[PeerRecord]:
    """Members whose places are in this bucket of ours."""
    made = (member(number, address=address.format(number)) for number in range(100_000))
    found = (record for record in made if bucket_of(record) == index)
    return [next(found) for _ in range(count)]


def filled(index: int = FAR) -> tuple[RoutingTable, list[PeerRecord]]:
    it, members = table(ME), of_bucket(index, BUCKET)
    assert [seen(it, record) for record in members] == [None] * BUCKET
    return it, members


steps = st.lists(
    st.tuples(st.sampled_from(["see", "failed", "alive", "forget", "update"]), st.integers(0, 120), st.integers(0, 9)),
    max_size=200,
)


@given(steps, st.integers(0, 2**256 - 1))
def test_whatever_happens_the_table_keeps_its_bounds_and_its_order(done, target):
    it = table("0")
    for what, number, network in done:
        record = member(
            number, address=f"/ip4/8.8.{network}.1/tcp/1" if network else f"/memory/{number}", version=network
        )
        if what == "see":
            doubtful = seen(it, record)
            assert doubtful is None or doubtful in it
        elif what == "update":
            it.update(record)
        else:
            getattr(it, what)(record.peer)
    assert member(0).peer not in it
    assert len(it) == len(it.peers()) == len(set(it.peers())) <= MAX_ENTRIES
    for bucket in it._buckets.values():
        networks = [entry.network for entry in bucket.entries.values()]
        assert len(networks) <= BUCKET
        assert all(networks.count(network) <= PER_NETWORK for network in networks if network)
    told = [place(record.peer) ^ target for record in it.closest(target)]
    assert told == sorted(told)
    assert len(told) == min(BUCKET, sum(not e.misses for b in it._buckets.values() for e in b.entries.values()))


def test_a_place_is_of_one_run_of_one_swarm():
    peer = PeerId("peer")
    others = [Scope(swarm=SwarmId(bytes(16)), run=SCOPE.run), Scope(swarm=SCOPE.swarm, run=RunId(bytes(16)))]
    assert len({place_of_id(scope, peer) for scope in (SCOPE, *others)}) == 3


def test_those_told_of_are_the_nearest_and_the_asker_is_not_among_them():
    it, everybody = table(ME), [member(number) for number in range(400)]
    for record in everybody:
        seen(it, record)
    target = place(PeerId("somebody"))
    there = sorted(it.peers(), key=lambda peer: place(peer) ^ target)
    assert [record.peer for record in it.closest(target, without=[there[0]])] == there[1 : BUCKET + 1]


def test_a_full_bucket_keeps_who_answers_and_gives_the_place_of_who_does_not():
    it, members = filled()
    newcomer = of_bucket(FAR, BUCKET + 1)[-1]
    oldest = members[0].peer
    assert seen(it, newcomer) == oldest
    assert newcomer.peer not in it
    it.alive(oldest)
    assert seen(it, newcomer) == members[1].peer, "who answered was seen last"
    it.failed(members[1].peer)
    assert newcomer.peer in it
    assert members[1].peer not in it
    assert len(it) == BUCKET


def test_a_crowd_of_newcomers_pushes_nobody_out():
    it, members = filled()
    for record in of_bucket(FAR, 10 * BUCKET)[BUCKET:]:
        assert seen(it, record) == members[0].peer
    assert set(it.peers()) == {record.peer for record in members}


def test_who_may_not_have_the_place_takes_nobodys_turn_to_wait_for_it():
    """A third member of a network has nobody probed, and does not push out who waits: it could not get in."""
    it, members = table(ME), of_bucket(FAR, BUCKET + 2)
    crowd = of_bucket(FAR, BUCKET + 5, address="/ip4/8.8.8.{}/tcp/1")[-3:]
    for record in (*crowd[:PER_NETWORK], *members[: BUCKET - PER_NETWORK]):
        assert seen(it, record) is None
    honest = members[-1]
    assert seen(it, honest) == crowd[0].peer
    assert seen(it, crowd[-1]) is None
    it.failed(crowd[0].peer)
    assert honest.peer in it


def test_who_fails_is_told_of_no_more_until_it_answers_and_goes_in_the_end():
    it, members = filled()
    gone = members[3].peer
    it.failed(gone)
    assert gone in it
    assert gone not in [record.peer for record in it.closest(place(gone))]
    it.alive(gone)
    assert it.closest(place(gone))[0].peer == gone
    for _ in range(MAX_MISSES):
        it.failed(gone)
    assert gone not in it


@pytest.mark.parametrize(
    ("address", "most"),
    [
        ("/ip4/8.8.8.{}/tcp/4001", PER_NETWORK),
        ("/ip4/8.8.{}.8/tcp/4001", BUCKET),
        ("/ip6/2a00:1450:4001:{}::1/tcp/4001", PER_NETWORK),
        ("/ip6/2a00:1450:{}::1/tcp/4001", BUCKET),
        ("/ip6/::ffff:8.8.8.{}/tcp/4001", PER_NETWORK),
        ("/dns4/{}.example/tcp/4001", PER_NETWORK),
        ("/ip4/192.168.1.{}/tcp/4001", BUCKET),
        ("/ip4/8.8.8.8/tcp/{}/p2p/relay/p2p-circuit", 0),
        ("/ip4/8.8.8/{}", 0),
    ],
)
def test_of_one_network_a_bucket_has_two(address, most):
    """Without it whoever has a /24 to itself had every bucket that it filled first."""
    it = table(ME)
    for number, record in enumerate(of_bucket(FAR, BUCKET)):
        it.see(record, address.format(number) + f"/p2p/{record.peer}")
    assert len(it) == most


def test_who_moves_to_a_crowded_network_goes():
    it = table(ME)
    one, two, three = of_bucket(FAR, 3)
    for number, record in enumerate((one, two)):
        it.see(record, f"/ip4/8.8.8.{number}/tcp/1")
    it.see(three, "/ip4/9.9.9.9/tcp/1")
    it.see(three, "/ip4/8.8.8.7/tcp/1")
    assert set(it.peers()) == {one.peer, two.peer}


def test_all_buckets_together_are_bounded(monkeypatch):
    monkeypatch.setattr(routing_table, "MAX_ENTRIES", 40)
    it = table(ME)
    for number in range(1000):
        seen(it, member(number))
    assert len(it) == 40


def test_an_old_record_does_not_take_the_place_of_a_newer_one():
    it, newer = table(ME), member(1, version=2)
    seen(it, newer)
    seen(it, member(1, version=1))
    it.update(member(1, version=1))
    assert it.closest(0) == [newer]
    it.update(member(1, version=3))
    assert it.closest(0)[0].version == 3


def test_stale_buckets_are_drawn_once_an_hour_and_only_where_somebody_may_be():
    it = table(ME)
    assert it.stale(0.0, random.Random(1)) is None, "nobody is known: nothing is looked up"
    for number in range(300):
        seen(it, member(number))
    lowest = min(index for index, bucket in it._buckets.items() if bucket.entries)
    mine, drawn = place(PeerId(f"peer-{ME}")), set()
    for turn in range(FAR - lowest + 1):
        target = it.stale(float(turn), random.Random(turn))
        assert target is not None
        it.looked_up(target, float(turn))
        drawn.add((target ^ mine).bit_length() - 1)
    assert drawn == set(range(lowest, FAR + 1))
    assert it.stale(100.0, random.Random(1)) is None
    assert it.stale(STALE_S, random.Random(1)) is not None


def test_networks():
    assert network_of("/ip4/8.8.8.8/tcp/1") == network_of("/ip4/8.8.8.9/tcp/2") == "8.8.8.0/24"
    assert network_of("/ip6/2a00:1450:4001::1/tcp/1") == "2a00:1450:4001::/48"
    assert [network_of(f"/ip4/{host}/tcp/1") for host in ("127.0.0.1", "10.1.2.3", "169.254.1.1")] == ["", "", ""]
