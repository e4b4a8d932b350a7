"""An address book among crowds: whose records stay when it is full, and what a newcomer is told."""

import random
from collections import Counter
from dataclasses import replace

import pytest
from gossip_samples import GENESIS, SCOPE
from topology_graphs import names

from gossip.core.api import RegionLayout, RunInfo
from gossip.core.config import GossipConfig
from gossip.core.envelope import seal
from gossip.core.errors import LocalError
from gossip.core.identity import Identity
from gossip.core.ids import PeerId
from gossip.core.limits import MAX_HELLO_RECORDS
from gossip.core.statements import PeerRecord, record_statement
from gossip.discovery.dht import MAX_CALLERS, KademliaNode
from gossip.discovery.peerstore import (
    MAX_DUMP_BYTES,
    MAX_FAR,
    MAX_HEARSAY,
    MAX_OF_NETWORK,
    MAX_REACHED,
    MAX_RECORDS,
    MAX_RECORDS_OF_REGIONS,
    PeerStore,
    RecordTrust,
)
from gossip.discovery.topology import Rings
from gossip.engine import Engine

HOST = "203.0.113.0/24"
HONEST = [f"honest {number}" for number in range(20)]


def made_up(name: str, *addresses: str) -> PeerRecord:
    given = addresses or (f"/memory/{name}",)
    addresses = tuple(f"{address}/p2p/{name}" for address in given)
    return PeerRecord(peer=PeerId(name), epoch=1, version=1, addresses=addresses, raw=name.encode())


def verified(it: PeerStore, name: str, network: str | None) -> None:
    it.learn(made_up(name), first_hand=True, calls_from=network)
    it.reached(PeerId(name), made_up(name).addresses[0], network)


@pytest.fixture
def it() -> PeerStore:
    """Twenty verified members, each in a network of its own."""
    made = PeerStore()
    for number, name in enumerate(HONEST):
        verified(made, name, f"192.0.{number}.0/24")
    return made


def known(it: PeerStore) -> set[PeerId]:
    return {record.peer for record in it.known()}


@pytest.mark.slow
def test_keys_of_one_host_that_answer_push_nobody_out_and_have_a_quarter(it):
    """They were as good as any, and newer: twenty honest members were gone after as many keys as a book has."""
    told = [made_up(f"told {number}") for number in range(100)]
    for record in told:
        it.learn(record, first_hand=False)
    for number in range(3 * MAX_RECORDS):
        verified(it, f"sybil {number}", HOST)
    left = Counter(peer.partition(" ")[0] for peer in known(it))
    assert left["honest"] == len(HONEST)
    assert left["told"] == len(told), "what others tell goes after a network's surplus"
    assert left["sybil"] == MAX_RECORDS - len(HONEST) - len(told) >= MAX_OF_NETWORK, "there was room for so many"
    for number in range(200, 400):
        verified(it, f"late {number}", f"198.51.{number}.0/24")
    left = Counter(peer.partition(" ")[0] for peer in known(it))
    assert left["honest"] == len(HONEST)
    assert MAX_OF_NETWORK <= left["sybil"] <= MAX_OF_NETWORK + 1, "but nobody else's room"


@pytest.mark.slow
def test_askers_of_one_host_count_for_it_wherever_they_say_that_they_are(it):
    """By hellos a crowd of one host had its share of the places, and by questions all that were not verified: each of
    its keys named an address in another network."""
    told = [made_up(f"told {number}") for number in range(100)]
    for record in told:
        it.learn(record, first_hand=False)
    node = KademliaNode(
        me=PeerId("me"),
        scope=SCOPE,
        genesis=GENESIS,
        peerstore=it,
        dialable=lambda peer, now: True,
        network_of=lambda peer: HOST,
    )
    for number in range(2 * MAX_RECORDS):
        sybil = Identity(number.to_bytes(32, "big"))
        address = f"/ip4/{8 + number // 256}.{number % 256}.8.8/tcp/1/p2p/{sybil.peer_id}"
        question = replace(
            node.request(0), record=seal(sybil, SCOPE, record_statement(epoch=1, version=1, addresses=(address,))).raw
        )
        node.on_find(sybil.peer_id, question, 0.0)
    left = known(it)
    assert {*HONEST} <= left
    assert {record.peer for record in told} <= left
    assert len(node._callers) == MAX_CALLERS, "and no more of them are probed after they have hung up"


def test_who_is_banned_or_has_left_is_told_to_nobody_before_the_table_has_dropped_it(it):
    gone: set[PeerId] = set()
    node = KademliaNode(
        me=PeerId("me"),
        scope=SCOPE,
        genesis=GENESIS,
        peerstore=it,
        dialable=lambda peer, now: peer not in gone,
        network_of=lambda peer: HOST,
    )
    node.look(0.0)
    first = PeerId(HONEST[0])
    question = replace(node.request(node.place(first)), record=b"")
    assert node.on_find(PeerId("asker"), question, 0.0)[1][0] == made_up(first).raw
    gone.add(first)
    assert made_up(first).raw not in node.on_find(PeerId("asker"), question, 1.0)[1]


def test_a_dump_that_is_too_large_is_not_read(it):
    with pytest.raises(LocalError, match=f"it has {MAX_DUMP_BYTES + 1} bytes"):
        it.recall(b" " * (MAX_DUMP_BYTES + 1), SCOPE)
    assert len(it) == len(HONEST)


@pytest.mark.slow
def test_nor_do_keys_of_many_networks_push_out_who_was_verified_before_them(it):
    for number in range(3 * MAX_RECORDS):
        verified(it, f"sybil {number}", f"net {number % 50}")
    assert {*HONEST} <= known(it)
    assert len(it) == MAX_RECORDS


def test_who_was_verified_stays_so_whoever_answers_after_it(it):
    """Last good addresses were kept in the order of dials: 512 keys on one host made strangers of all neighbours."""
    for number in range(3 * MAX_REACHED):
        it.reached(PeerId(f"sybil {number}"), f"/memory/sybil {number}/p2p/sybil {number}", HOST)
    assert all(it.standing(PeerId(name)) is RecordTrust.VERIFIED for name in HONEST)
    assert len(it._reached) == MAX_REACHED


def test_of_what_is_told_the_most_talkative_teller_s_goes_first():
    it = PeerStore()
    for number in range(30):
        it.learn(made_up(f"told by a friend {number}"), first_hand=False, teller="friend")
    for number in range(2 * MAX_RECORDS):
        it.learn(made_up(f"told by a crowd {number}"), first_hand=False, teller="crowd")
    assert sum("friend" in peer for peer in known(it)) == 30


def test_what_one_liar_reports_leaves_three_quarters_to_a_verified_swarm_of_one_network():
    """Each record that it made up named another network: of 200 members of one /24 it left 65."""
    it = PeerStore()
    for number in range(200):
        verified(it, f"member {number}", HOST)
    for number in range(3 * MAX_RECORDS):
        address = f"/ip4/{8 + number // 256}.{number % 256}.8.8/tcp/1"
        it.learn(made_up(f"invented {number}", address), first_hand=False, teller="liar")
    left = Counter(peer.partition(" ")[0] for peer in known(it))
    assert left == {"member": MAX_RECORDS - MAX_HEARSAY, "invented": MAX_HEARSAY}


def test_a_crowd_of_one_network_that_has_filled_a_book_still_makes_room_for_others_that_are_reported():
    it = PeerStore()
    for number in range(MAX_RECORDS):
        verified(it, f"sybil {number}", HOST)
    for number in range(20):
        it.learn(made_up(f"honest {number}", f"/ip4/8.{number}.8.8/tcp/1"), first_hand=False, teller="friend")
    assert {*HONEST} <= known(it)


def is_near(record: PeerRecord) -> bool:
    return "near" in record.peer


@pytest.mark.parametrize("order", ["near first", "far first"])
def test_members_of_far_regions_make_room_for_those_that_one_may_belong_beside(order):
    """They took as many places: of a swarm of a thousand a node forgot and learned its own region's again and again."""
    it = PeerStore(needs=is_near)
    places = ["near", "far"] if order == "near first" else ["far", "near"]
    for place in places:
        for number in range(MAX_RECORDS):
            verified(it, f"{place} {number}", f"{place} {number}")
    left = Counter(peer.partition(" ")[0] for peer in known(it))
    assert left == {"far": MAX_FAR, "near": MAX_RECORDS}
    assert len(it) == MAX_RECORDS_OF_REGIONS


@pytest.mark.slow
def test_nor_does_a_crowd_on_one_host_that_claims_the_own_region_push_out_far_ones():
    it = PeerStore(needs=is_near)
    for number in range(2 * MAX_FAR):
        verified(it, f"far {number}", f"far {number}")
    for number in range(3 * MAX_RECORDS):
        verified(it, f"near sybil {number}", HOST)
    assert sum("far" in peer for peer in known(it)) == 2 * MAX_FAR


def test_a_newcomer_is_told_of_every_network_before_it_is_told_of_one_a_second_time(it):
    """Of 20 honest members and 200 keys on one host it was told of three honest ones."""
    for number in range(200):
        verified(it, f"sybil {number}", HOST)
    for seed in range(10):
        told = {raw.decode() for raw in it.sample(random.Random(seed), without=PeerId("honest 0"))}
        assert len(told) == MAX_HELLO_RECORDS
        assert set(HONEST[1:]) <= told


def test_nor_are_all_that_it_is_told_of_first_from_the_host_that_has_ground_ids_beside_it(it):
    me = PeerId("me")
    for name in names(200):
        verified(it, name, HOST)
    told = {raw.decode() for raw in it.sample(random.Random(1), without=me, rings=Rings(me, SCOPE, 8))}
    assert set(HONEST) <= told


def test_where_a_peer_is_goes_by_where_it_answered_then_by_where_it_calls_from_then_by_its_word():
    it, peer = PeerStore(), PeerId("a")
    it.learn(made_up("a", "/ip4/8.8.8.8/tcp/1"), first_hand=False)
    assert it.network_of(peer) == "8.8.8.0/24"
    it.learn(made_up("a", "/ip4/8.8.8.8/tcp/1"), first_hand=True, calls_from=HOST)
    assert it.network_of(peer) == HOST
    it.reached(peer, "/ip4/8.8.8.8/tcp/1/p2p/a", "8.8.8.0/24")
    assert it.network_of(peer) == "8.8.8.0/24"
    it.reached(peer, "/ip4/9.9.9.9/tcp/1/p2p/a", "9.9.9.0/24")
    assert it.network_of(peer) == HOST, "it does not say that it is there"
    it.learn(made_up("b"), first_hand=True, calls_from=None)
    assert it.network_of(PeerId("b")) is None, "through a relay"
    assert it.group_of(PeerId("b")) == it.group_of(PeerId("nobody"))


def test_who_answers_through_a_relay_is_where_it_called_from_and_else_nowhere():
    """Or a relay would count all that it relays for as one network, and send most of them away."""
    it, circuit = PeerStore(), "/p2p/relay/p2p-circuit"
    for name, calls_from in (("called", HOST), ("never", None)):
        it.learn(made_up(name, circuit), first_hand=True, calls_from=calls_from)
        it.reached(PeerId(name), made_up(name, circuit).addresses[0], None)
        assert it.standing(PeerId(name)) is RecordTrust.VERIFIED
        assert it.network_of(PeerId(name)) == calls_from
        assert it.relayed(PeerId(name))
    assert not it.relayed(PeerId("nobody"))


def test_who_was_verified_first_comes_first_also_after_a_restart(it):
    it.learn(made_up("late"), first_hand=True)
    it.reached(PeerId("late"), "/memory/late/p2p/late")
    it.learn(replace(made_up(HONEST[0]), version=2), first_hand=True)
    assert [record.peer for record in it.established()] == [*HONEST, "late"]
    assert [record.peer for record in it.known()] == [*HONEST[1:], "late", HONEST[0]]


@pytest.mark.slow
def test_a_node_keeps_its_own_regions_members_and_those_beside_it_before_far_ones():
    regions = tuple(f"region {number}" for number in range(12))
    run = RunInfo(run_id=SCOPE.run, genesis=GENESIS)
    layout = RegionLayout(own=regions[0], regions=regions)
    rng, config = random.Random(1), GossipConfig()
    node = Engine(identity=Identity.generate(), config=config, run=run, rng=rng, layout=layout)
    near = {regions[0], *node.bridges.adjacent}
    assert len(near) < len(regions)
    for number in range(MAX_RECORDS // 4):
        for region in regions:
            made = replace(made_up(f"{region} {number}"), region=region)
            node.peerstore.learn(made, first_hand=False, teller=f"{region} {number}")
    far = [record for record in node.peerstore.known() if record.region not in near]
    assert len(far) <= MAX_FAR + 1
