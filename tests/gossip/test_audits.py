"""Of whom whose links are passed on, in swarms of every size, and how two histories are found out."""

import math
import random
from collections import Counter
from itertools import combinations

import numpy as np
import pytest
import trio
from gossip_liars import Liar
from gossip_samples import ALICE, BOB, SCOPE, chain, goodbye, link
from gossip_swarm import CONFIG, identity, swarm, until
from hypothesis import given
from hypothesis import strategies as st
from sizes import thorough_but
from test_engine import engine, hello
from topology_graphs import names

from gossip.actions import Broadcast
from gossip.core.digests import NO_DIGEST, digest_of
from gossip.core.errors import RemoteError
from gossip.discovery.topology import CIRCLE, Rings
from gossip.updates.audits import (
    BASES_BURST,
    BASES_PER_S,
    LINKS_OF_FOLLOWED,
    LINKS_OF_HEARD,
    LOG_SHARE,
    LOG_SHARE_OF_REGION,
    MAX_FOLLOWED,
    MAX_HEARD,
    SHOWN_BURST,
    LinkAudit,
    audit_every,
    goes_all_the_way,
)
from gossip.updates.seen import REPEAT_S

A = ALICE.peer_id
STRANGER = identity(77)


@pytest.mark.parametrize(
    ("members", "k"),
    [(1, 1), (6, 2), (8, 2), (16, 2), (32, 4), (64, 8), (100, 8), (1000, 64), (10_000, 512), (10**6, 32_768)],
)
def test_how_many_links_apart(members, k):
    assert audit_every(members) == k


@given(st.integers(1, 10**7), st.integers(1, 10**7), st.integers(0, 10**6))
def test_who_believes_in_fewer_members_passes_on_no_less(one, other, seq):
    few, many = sorted((one, other))
    assert audit_every(many) % audit_every(few) == 0
    assert goes_all_the_way(A, seq, few) or not goes_all_the_way(A, seq, many)
    assert goes_all_the_way(A, 0, many), "who begins anew is seen by all"


@given(st.integers(2, 10**9))
def test_links_of_others_a_round_grow_with_the_logarithm_of_the_swarm(members):
    others = members / audit_every(members)
    assert others <= LOG_SHARE * math.log2(members)
    assert others > LOG_SHARE / 2 * math.log2(members) or audit_every(members) == 1


@pytest.mark.parametrize(("members", "k"), [(1, 1), (4, 2), (5, 4), (10, 4), (20, 8), (50, 16), (1000, 128)])
def test_of_ones_own_region_fewer_links_go_all_the_way(members, k):
    assert audit_every(members, LOG_SHARE_OF_REGION) == k
    assert audit_every(members, LOG_SHARE_OF_REGION) % audit_every(members) == 0


@pytest.mark.parametrize("members", thorough_but({100, 1000}, [100, 1000, 10_000]))
def test_chains_that_begin_together_go_all_the_way_in_different_rounds(members):
    """All of a swarm's links in one round would be more than a node takes in a second, and be dropped."""
    k = audit_every(members)
    turns = Counter(
        next(seq for seq in range(1, k + 1) if goes_all_the_way(peer, seq, members)) for peer in names(members)
    )
    assert max(turns.values()) < 4 * members / k + 8


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
    assert it.swarm_size >= count
    it.drain()
    return it


def shown(it) -> list[bytes]:
    return [action.raw for action in it.drain() if isinstance(action, Broadcast)]


def test_of_others_every_kth_link_is_passed_on_once_and_of_neighbours_all():
    it = in_a_swarm_of(100)
    k, links = audit_every(it.swarm_size), chain(40, by=STRANGER)
    assert k in (8, 16)
    passed = [each.seq for each in links if it.on_message(A, each.raw, 0.0)]
    assert passed[0] == 0
    assert set(np.diff(passed[1:])) == {k}
    assert 0 < passed[1] <= k
    assert not it.on_message(A, links[passed[1]].raw, 2 * REPEAT_S), "again for neighbours' links alone"
    own = chain(9, by=ALICE)
    assert all(it.on_message(A, each.raw, 0.0) for each in own)
    assert it.on_message(A, own[5].raw, 2 * REPEAT_S)


def test_an_id_that_is_ground_beside_a_victim_makes_it_pass_on_less_and_nothing_else():
    """What a liar gains by it: the victim believes in more members than there are. It compares as ever."""
    victim = in_a_swarm_of(30)
    victim.mesh.rings._nearest = [(CIRCLE >> 40, CIRCLE >> 40)] * 3
    assert audit_every(victim.swarm_size) > 2**30
    one, other = chain(3, by=STRANGER), chain(3, by=STRANGER, content=b"another")
    assert not victim.on_message(A, one[2].raw, 0.0)
    assert victim.on_message(A, other[2].raw, 0.0)


# -- comparing


@pytest.mark.parametrize("apart", [0, 1, -1])
def test_two_histories_of_a_stranger_that_meet_in_a_node_go_on_from_there_both(apart):
    """At one place, or one link after the other that does not lead to it, whichever comes first."""
    it = in_a_swarm_of(1000)
    one, other = chain(12, by=STRANGER), chain(12, by=STRANGER, content=b"another")
    at = next(
        seq for seq in range(4, 9) if not any(goes_all_the_way(STRANGER.peer_id, seq + d, 1000) for d in (0, 1, -1))
    )
    assert not it.on_message(A, one[at].raw, 0.0)
    assert shown(it) == []
    assert it.on_message(A, other[at + apart].raw, 0.0)
    assert shown(it) == [one[at].raw]
    assert not it.is_banned(STRANGER.peer_id, 0.0), "a stranger takes no place among the banned"
    with pytest.raises(RemoteError, match="banned"):
        it.on_hello(STRANGER.peer_id, hello(by=STRANGER), 1.0)
    assert it.proofs()[STRANGER.peer_id] == (one[at].raw, other[at + apart].raw)


def test_honest_links_in_any_order_and_of_several_chains_prove_nothing():
    it = LinkAudit()
    links = [each for epoch in range(1, 6) for each in chain(40, by=STRANGER, epoch=epoch)]
    random.Random(1).shuffle(links)
    assert all(it.hear(each, follows=n % 2 == 0, members=100, now=0.0).against is None for n, each in enumerate(links))


def test_what_was_heard_of_a_stranger_counts_once_it_is_followed():
    it = LinkAudit()
    told, other = chain(3, by=STRANGER), chain(3, by=STRANGER, content=b"another")
    for each in told:
        it.hear(each, follows=False, members=100, now=0.0)
    found = it.hear(other[2], follows=True, members=100, now=1.0)
    assert found.against is not None
    assert found.against.raw in {each.raw for each in told}
    assert it.proof_against(STRANGER.peer_id) == (found.against.raw, other[2].raw)


def test_where_a_chain_that_ends_had_come_to_is_shown_by_those_who_know_and_passed_on_by_all():
    it = in_a_swarm_of(1000)
    at = next(seq for seq in range(4, 9) if not goes_all_the_way(STRANGER.peer_id, seq, 1000))
    ended, anew = chain(at + 1, by=STRANGER)[at], chain(1, by=STRANGER, epoch=2)[0]
    it.on_message(A, ended.raw, 0.0)
    assert it.on_message(A, anew.raw, 0.0)
    assert shown(it) == [ended.raw]
    far = in_a_swarm_of(1000)
    assert far.on_message(A, anew.raw, 0.0)
    assert shown(far) == []
    assert far.on_message(A, ended.raw, 1.0), "whoever follows it should see this"
    assert not far.on_message(A, ended.raw, 9.0)
    assert dict(far.stats.rejected) == {}


def test_who_lies_and_begins_anew_is_found_by_those_who_followed_it_before():
    """It has left meanwhile: a neighbour that is lost is not forgotten with its links."""
    it = in_a_swarm_of(1000)
    one, other = chain(6, by=ALICE), chain(6, by=ALICE, content=b"another")
    for each in one:
        it.on_message(A, each.raw, 0.0)
    it.on_goodbye(A, goodbye(), 1.0)
    assert not it.neighbours
    assert it.on_message(BOB.peer_id, chain(1, by=ALICE, epoch=2)[0].raw, 90.0)
    assert it.on_message(BOB.peer_id, other[4].raw, 91.0)
    assert it.is_banned(A, 91.0)
    assert it.proofs()[A] == (one[4].raw, other[4].raw)


def test_who_begins_anew_all_the_time_is_not_followed_and_not_passed_on():
    it = in_a_swarm_of(100)
    bases = [chain(1, by=ALICE, epoch=epoch)[0] for epoch in range(1, 40)]
    passed = [it.on_message(A, each.raw, 0.0) for each in bases]
    assert passed == [True] * (1 + BASES_BURST) + [False] * (len(bases) - 1 - BASES_BURST)
    assert it.neighbours[A].chain.announced.epoch == 1 + BASES_BURST
    assert it.on_message(A, chain(1, by=ALICE, epoch=99)[0].raw, 1 / BASES_PER_S), (
        "a restart a minute later is followed"
    )


def test_old_links_of_a_signer_go_all_the_way_at_a_rate():
    """Else whoever keeps others' old links would make all pass them on."""
    it = in_a_swarm_of(1000)
    it.on_message(A, chain(1, by=STRANGER, epoch=9)[0].raw, 0.0)
    old = [each for epoch in range(1, 9) for each in chain(9, by=STRANGER, epoch=epoch)[1:]]
    passed = sum(it.on_message(A, each.raw, n / 10) for n, each in enumerate(old))
    assert SHOWN_BURST <= passed <= SHOWN_BURST + 1


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 3), st.integers(0, 20), st.booleans()), max_size=200))
def test_what_is_kept_is_bounded_and_nothing_raises(heard):
    it = LinkAudit()
    for who, epoch, seq, follows in heard:
        key = identity(1000 + who)
        prev = digest_of(b"before") if seq else NO_DIGEST
        it.hear(link(by=key, epoch=epoch, seq=seq, prev=prev), follows=follows, members=100, now=0.0)
    assert len(it._followed) <= MAX_FOLLOWED
    assert len(it._heard) <= MAX_HEARD
    assert all(len(each) <= LINKS_OF_HEARD for each in it._heard._by_signer.values())


def test_tables_keep_their_bounds():
    it = LinkAudit()
    for number in range(3 * MAX_FOLLOWED):
        key = identity(2000 + number)
        for each in (*chain(3, by=key), chain(3, by=key, content=b"another")[2]):
            it.hear(each, follows=True, members=100, now=0.0)
    assert len(it._followed) == MAX_FOLLOWED
    for number in range(MAX_HEARD + 20):
        it.hear(chain(1, by=identity(5000 + number))[0], follows=False, members=100, now=0.0)
    assert len(it._heard) == MAX_HEARD
    for each in chain(LINKS_OF_FOLLOWED + 9, by=ALICE):
        it.hear(each, follows=True, members=100, now=0.0)
    assert [each.seq for each in it._followed.of(A)._links] == list(range(9, LINKS_OF_FOLLOWED + 9))


@pytest.mark.slow
@pytest.mark.parametrize(("between", "at_once"), [(1, True), (2, False)])
async def test_two_histories_are_found_out_at_once_two_steps_apart_and_by_an_audit_further_away(
    autojump_clock, between, at_once
):
    """A path of members, a liar at both ends: each end hears one history, and nobody between them follows the liar."""
    key = identity(66)
    audited = next(seq for seq in range(1, 99) if goes_all_the_way(key.peer_id, seq, 100))
    assert audited > 1
    async with swarm(CONFIG) as it, trio.open_nursery() as nursery:
        nodes = [await it.start(1)]
        for number in range(2, 3 + between):
            nodes.append(await it.start(number, peers=(nodes[-1].address,)))
        for node in nodes:
            await node.begin()
        for one, other in combinations(range(len(nodes)), 2):
            if other > one + 1:
                it.network.cut(nodes[one].peer, nodes[other].peer)
        await until(lambda: all(len(node.service.neighbours()) == 2 for node in nodes[1:-1]))
        await until(lambda: all(len(node.service.neighbours()) == 1 for node in (nodes[0], nodes[-1])))
        for node in nodes:
            rings = node.service._engine.mesh.rings
            rings.see([*names(99), *(other.peer for other in nodes if other is not node)])
            node.service._engine.mesh.look_round = lambda heard_of, now: None  # the others are not there to be found
        liars = []
        for node, content in ((nodes[0], b"one"), (nodes[-1], b"another")):
            transport = it.network.attach(key.peer_id)
            liar = Liar(key, transport, link=chain(1, by=key)[0].raw)
            await nursery.start(lambda *, task_status: liar.transport.run(liar, task_status=task_status))  # noqa: B023
            await liar.greet(node)
            liars.append((liar, chain(audited + 1, by=key, content=content)))
        for seq in range(1, audited + 1):
            for liar, links in liars:
                await liar.transport.publish(links[seq].raw)
            await trio.sleep(5.0)
            told = [bool(node.told("equivocation")) for node in (nodes[0], nodes[-1])]
            assert told == [at_once or seq == audited] * 2, seq
            if all(told):
                break
        nursery.cancel_scope.cancel()
