"""Of whom whose links are passed on, in swarms of every size."""

import pytest
import trio
from gossip_liars import Liar
from gossip_samples import ALICE, SCOPE, chain
from gossip_swarm import CONFIG, identity, swarm, until
from hypothesis import given
from hypothesis import strategies as st
from test_engine import engine, hello
from topology_graphs import names

from gossip.discovery.topology import CIRCLE, Rings
from gossip.updates.audits import MOST_APART, WHOLE_SWARM, audit_every, goes_all_the_way
from gossip.updates.seen import REPEAT_S

STRANGER = identity(77)


@pytest.mark.parametrize(
    ("members", "k"),
    [(1, 1), (32, 1), (48, 1), (49, 2), (100, 4), (250, 8), (1000, 32), (2000, 64), (10**6, MOST_APART)],
)
def test_how_many_links_apart(members, k):
    assert audit_every(members) == k


@given(st.integers(1, 10**7), st.integers(1, 10**7), st.integers(0, 10**6))
def test_who_believes_in_fewer_members_passes_on_no_less(one, other, seq):
    few, many = sorted((one, other))
    assert audit_every(many) % audit_every(few) == 0
    assert goes_all_the_way(seq, few) or not goes_all_the_way(seq, many)
    assert goes_all_the_way(0, many)


@given(st.integers(1, MOST_APART * WHOLE_SWARM))
def test_links_of_others_a_round_are_bounded(members):
    assert members / audit_every(members) <= 1.5 * WHOLE_SWARM


@pytest.mark.parametrize("count", [100, 1000])
def test_the_gaps_beside_a_member_say_how_many_there_are(count):
    members = names(count)
    told = []
    for peer in members[:40]:
        everybody = Rings(peer, SCOPE, 8)
        everybody.see(members)
        assert everybody.members >= count, "all are known"
        nearest = Rings(peer, SCOPE, 8)
        nearest.see(everybody.beside(peer, everybody._seen, 3))
        told.append(nearest.members)
    told.sort()
    assert count / 1.5 < told[len(told) // 2] < count * 1.5
    assert count / 6 < told[0]
    assert told[-1] < count * 6


def in_a_swarm_of(count: int):
    it = engine()
    it.on_hello(ALICE.peer_id, hello(), 0.0)
    it.mesh.rings.see(names(count - 1))
    assert it.mesh.rings.members >= count
    return it


def test_in_a_small_swarm_all_links_are_passed_on_once():
    it = in_a_swarm_of(20)
    links = chain(9, by=STRANGER)
    assert [it.on_message(ALICE.peer_id, each.raw, 0.0) for each in links] == [True] * len(links)
    assert not it.on_message(ALICE.peer_id, links[3].raw, 2 * REPEAT_S), "again for neighbours' links alone"


def test_in_a_large_swarm_every_kth_link_of_others_and_all_of_neighbours():
    it = in_a_swarm_of(100)
    links = chain(9, by=STRANGER)
    passed = [each.seq for each in links if it.on_message(ALICE.peer_id, each.raw, 0.0)]
    assert passed == [0, 4, 8]
    own = chain(9, by=ALICE)
    assert all(it.on_message(ALICE.peer_id, each.raw, 0.0) for each in own)
    assert it.on_message(ALICE.peer_id, own[5].raw, 2 * REPEAT_S)


def test_an_id_that_is_ground_beside_a_victim_makes_it_pass_on_less_and_nothing_else():
    """What a liar gains by it: the victim believes in more members than there are, up to the bound."""
    victim = Rings(names(1)[0], SCOPE, 8)
    victim.see(names(30))
    before = victim.members
    victim._nearest = [(CIRCLE >> 40, CIRCLE >> 40)] * 3
    assert victim.members > before
    assert audit_every(victim.members) == MOST_APART


@pytest.mark.slow
async def test_two_histories_are_found_out_by_the_next_link_that_goes_all_the_way(autojump_clock):
    """A path of members, a liar at both ends: each end hears one history, and nobody between them follows the liar."""
    async with swarm(CONFIG) as it, trio.open_nursery() as nursery:
        first = await it.start(1)
        second = await it.start(2, peers=(first.address,))
        third = await it.start(3, peers=(second.address,))
        nodes = [first, second, third]
        for node in nodes:
            await node.begin()
        await until(lambda: all(len(node.service.neighbours()) == 2 for node in nodes))
        it.network.cut(first.peer, third.peer)
        for node in nodes:
            rings = node.service._engine.mesh.rings
            rings.see([*names(99), *(other.peer for other in nodes if other is not node)])
            node.service._engine.mesh.look_round = lambda heard_of, now: None  # the others are not there to be found
        liars = []
        for node, content in ((first, b"one"), (third, b"another")):
            key = identity(66)
            transport = it.network.attach(key.peer_id)
            liar = Liar(key, transport, link=chain(1, by=key)[0].raw)
            await nursery.start(lambda *, task_status: liar.transport.run(liar, task_status=task_status))  # noqa: B023
            await liar.greet(node)
            liars.append((liar, chain(9, by=key, content=content)))
        for seq in range(1, 9):
            for liar, links in liars:
                await liar.transport.publish(links[seq].raw)
            await trio.sleep(1.0)
            told = [bool(node.told("equivocation")) for node in (first, third)]
            if seq < 4:
                assert not any(told), seq
            elif all(told):
                break
        assert all(told)
        assert seq in (4, 5, 6, 7, 8)
        nursery.cancel_scope.cancel()
