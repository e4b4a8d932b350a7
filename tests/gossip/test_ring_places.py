"""A table of neighbours that knows its rings: who gets in, who stays, and what a crowd with ground ids comes to."""

import random

import pytest
from gossip_samples import SCOPE, WELL_KNOWN, chain
from gossip_swarm import identity

from gossip.actions import ActionQueue, Disconnect
from gossip.core.ids import PeerId
from gossip.discovery.topology import CIRCLE, Rings, place_of, ring_count
from gossip.updates.hash_chain import ChainPosition
from gossip.updates.mesh import ABSENT_MIN_S, HELD_S, SWAP_EVERY_S, Mesh
from gossip.updates.score_table import ScoreTable

ME, DEGREE = PeerId("me"), 8
RINGS = ring_count(DEGREE)
FREE = DEGREE - 2 * RINGS
HONEST = [PeerId(f"honest {number}") for number in range(60)]


def table(others: list[PeerId] = HONEST, degree: int = DEGREE) -> tuple[Mesh, ActionQueue]:
    actions = ActionQueue()
    made = Mesh(
        me=ME,
        scope=SCOPE,
        degree=degree,
        rng=random.Random(1),
        scores=ScoreTable(),
        actions=actions,
        evidence=WELL_KNOWN,
    )
    made.look_round(others, 0.0)
    return made, actions


def join(it: Mesh, peer: PeerId, now: float = 0.0, *, tracked: bool = True, lonely: bool = False) -> bool:
    it.admit(peer, 0 if lonely else DEGREE, now)
    if tracked and peer in it.table:
        head = chain(1, by=identity(7))[0]
        it.table[peer].chain.applied = ChainPosition(epoch=1, seq=0, digest=head.digest, round=0, raw=head.raw)
    return peer in it.table


def full(it: Mesh) -> tuple[list[PeerId], list[PeerId]]:
    """Fill the table with strangers to the rings, all followed; those, and whom the rings want."""
    wanted = sorted(it.rings.wanted)
    strangers = [peer for peer in HONEST if peer not in wanted][:DEGREE]
    assert all(join(it, peer) for peer in strangers)
    return strangers, wanted


def distance(peer: PeerId, ring: int) -> int:
    apart = (place_of(SCOPE, ring, peer) - place_of(SCOPE, ring, ME)) % CIRCLE
    return min(apart, CIRCLE - apart)


def ground(count: int, tries: int = 4000) -> list[PeerId]:
    """Names out of many that stand nearest to us, on one ring after the other."""
    names = [PeerId(f"ground {number}") for number in range(tries)]
    nearest = [sorted(names, key=lambda name, ring=ring: distance(name, ring))[:count] for ring in range(RINGS)]
    return [name for rank in zip(*nearest, strict=True) for name in rank][:count]


def test_whom_the_rings_want_gets_in_and_who_came_last_beside_no_ring_goes():
    it, actions = table()
    strangers, wanted = full(it)
    actions.drain()
    assert it.has_room_for(wanted[0], 0.0)
    assert not it.has_room_for(HONEST[-1] if HONEST[-1] not in wanted else HONEST[-2], 0.0)
    assert join(it, wanted[0])
    assert Disconnect(peer=strangers[-1]) in actions.drain()
    for peer in wanted[1:]:
        assert join(it, peer)
    assert set(it.table) == {*wanted, *strangers[: DEGREE - len(wanted)]}, "the free places stay with the first"


@pytest.mark.slow
def test_a_crowd_that_ground_its_ids_gets_the_rings_places_and_never_the_free_ones():
    """The price of a ring place is some thousand hashes. The free places and the operator's cannot be bought so."""
    it, _ = table()
    strangers, wanted = full(it)
    it.anchors = frozenset(strangers[3:4])
    for peer in wanted:
        join(it, peer)
    now, crowd = 0.0, ground(300)
    for peer in crowd:
        now += SWAP_EVERY_S
        it.look_round([*HONEST, *crowd], now)
        it.admit(peer, 0, now)
    taken = [peer for peer in it.table if peer in crowd]
    assert taken, "it is cheap to stand beside somebody"
    assert {strangers[0], strangers[3]} <= set(it.table), "the oldest, and the operator's"


def test_a_crowd_in_which_each_is_nearer_than_the_one_before_takes_no_free_place():
    """Between two looks round whoever had been nearest was still wanted, and kept a place beside its successor."""
    it, _ = table(degree=4)
    now = 0.0
    strangers = [peer for peer in HONEST if peer not in it.rings.wanted][:4]
    assert all(join(it, peer) for peer in strangers)
    names = sorted((PeerId(f"ground {number}") for number in range(400)), key=lambda name: -distance(name, 0))
    for name in names:
        now += SWAP_EVERY_S + 1
        join(it, name, now, tracked=False)
    assert names[-1] in it.table, "it did get in"
    assert set(strangers[:2]) <= set(it.table)


@pytest.mark.slow
def test_if_all_places_were_the_rings_and_nobody_settled_such_a_crowd_would_have_them_all(monkeypatch):
    monkeypatch.setattr("gossip.updates.mesh.SETTLED_S", float("inf"))
    monkeypatch.setattr("gossip.discovery.topology.ring_count", lambda degree: degree // 2)
    monkeypatch.setattr("test_ring_places.RINGS", DEGREE // 2)
    it, _ = table()
    full(it)
    now, crowd = 0.0, ground(300)
    for peer in crowd:
        now += SWAP_EVERY_S
        it.look_round([*HONEST, *crowd], now)
        it.admit(peer, DEGREE, now)
    assert len(set(it.table) - set(crowd)) < FREE


def test_places_are_not_given_to_the_rings_faster_than_their_rate():
    it, _ = table()
    full(it)
    changes = 0
    for peer in reversed(ground(300)):
        before = set(it.table)
        it.admit(peer, DEGREE, 0.0)
        changes += set(it.table) != before
    assert changes <= DEGREE - FREE


def _rings_without(gone: PeerId) -> frozenset[PeerId]:
    rings = Rings(ME, SCOPE, DEGREE)
    rings.see(peer for peer in HONEST if peer != gone)
    return rings.wanted


def test_a_ring_place_that_falls_free_waits_for_whom_the_rings_put_there():
    it, _ = table()
    wanted = sorted(it.rings.wanted)
    strangers = [peer for peer in HONEST if peer not in wanted]
    for peer in (*wanted, *strangers[: DEGREE - len(wanted)]):
        join(it, peer)
    gone = next(peer for peer in wanted if _rings_without(peer) - set(it.table))
    it.vanish(gone, "gone", 10.0)
    it.look_round(HONEST, 10.0)
    (successor, *_) = sorted(it.rings.wanted - set(it.table))
    assert gone not in it.rings.wanted
    assert not it.has_room_for(strangers[-1], 10.0)
    assert not join(it, strangers[-1], 10.0)
    assert it.has_room_for(successor, 10.0)
    assert join(it, strangers[-1], 10.0 + HELD_S), "but not for ever"


def test_so_it_does_for_the_successor_at_no_cost_to_anybody():
    it, actions = table()
    wanted = sorted(it.rings.wanted)
    for peer in (*wanted, *[each for each in HONEST if each not in wanted][: DEGREE - len(wanted)]):
        join(it, peer)
    it.depart(wanted[0], 10.0)
    it.look_round(HONEST, 10.0)
    actions.drain()
    for successor in sorted(it.rings.wanted - set(it.table))[:1]:
        assert join(it, successor, 10.0)
    assert not [out for out in actions.drain() if isinstance(out, Disconnect)]


def test_who_is_gone_has_no_place_on_the_rings_until_it_shows_itself():
    it, _ = table()
    gone = sorted(it.rings.wanted)[0]
    join(it, gone)
    it.vanish(gone, "gone", 0.0)
    it.look_round(HONEST, 1.0)
    assert gone not in it.rings.wanted
    it.look_round(HONEST, 2 * ABSENT_MIN_S)
    assert gone in it.rings.wanted, "after a while it is looked for again"
    it.absent(gone, 100.0)
    it.present(gone)
    it.look_round(HONEST, 100.0)
    assert gone in it.rings.wanted


def test_beyond_a_full_mesh_a_node_leaves_a_place_open_and_the_lonely_find_it():
    it, _ = table()
    strangers = [peer for peer in HONEST if peer not in it.rings.wanted]
    for peer in strangers[: DEGREE - FREE // 2]:
        join(it, peer)
    assert not it.has_places
    assert it.has_room_for(strangers[-1], 0.0)
    assert join(it, strangers[-1])


@pytest.mark.parametrize("count", [1, DEGREE])
def test_while_there_is_a_place_for_everyone_there_are_no_rings(count):
    it, _ = table(HONEST[:count])
    assert it.rings.wanted == frozenset()
    assert it.has_places
    for peer in HONEST[:count]:
        assert join(it, peer)


def test_a_lonely_newcomer_takes_no_ring_place_while_another_can_go():
    it, _ = table()
    wanted = sorted(it.rings.wanted)
    strangers = [peer for peer in HONEST if peer not in wanted]
    for peer in (*wanted[:4], *strangers[:2], *wanted[4:]):
        join(it, peer)
    while len(it.table) < DEGREE:
        join(it, strangers[len(it.table)])
    for peer in it.table:
        it.table[peer].neighbours = DEGREE
    before = set(it.table)
    assert join(it, strangers[-1], SWAP_EVERY_S, tracked=False, lonely=True)
    (lost,) = before - set(it.table)
    assert lost not in wanted or not [peer for peer in strangers[:2] if peer not in it.table]
