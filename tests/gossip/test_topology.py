"""Rings alone: the graph that members draw, each for itself, from what it knows of the others."""

import random

import numpy as np
import pytest
from gossip_samples import ALICE, BOB, SCOPE
from hypothesis import given
from hypothesis import strategies as st
from sizes import thorough_but
from topology_graphs import Graph, gap_of, names, random_regular_gap, rings_of

from gossip.core.ids import PeerId
from gossip.discovery.topology import MAX_PLACES, Rings, agreed_edges, place_of, ring_count, tag_of

DEGREE = 8


@given(count=st.integers(1, 40), degree=st.integers(1, 20), seed=st.integers(0, 1000))
def test_every_edge_is_drawn_alike_by_both_ends_and_nobody_has_more_than_its_places(count, degree, seed):
    graph = rings_of(names(count, seed), degree)
    for peer, beside in graph.items():
        assert peer not in beside
        assert len(beside) <= degree - Rings(peer, SCOPE, degree).free_places
        assert all(peer in graph[other] for other in beside)
    if count <= degree + 1:
        assert not any(graph.values()), "there is a place for everyone: no rings"
    elif degree > 1:
        assert all(graph.values())


@pytest.mark.parametrize(
    ("degree", "rings", "free"),
    [(1, 0, 1), (2, 1, 0), (3, 1, 1), (4, 1, 2), (6, 2, 2), (7, 2, 3), (8, 3, 2), (16, 6, 4)],
)
def test_an_eighth_of_the_places_is_nobodys_twice_over(degree, rings, free):
    assert (ring_count(degree), Rings(PeerId("me"), SCOPE, degree).free_places) == (rings, free)


@pytest.mark.parametrize(("count", "draws"), thorough_but({(32, 20)}, [(16, 20), (32, 20), (64, 20), (200, 3)]))
def test_the_rings_alone_are_as_good_as_a_random_regular_graph(count, draws):
    """The least of all draws: at 6 places a node it is within a quarter of the bound for random 6-regular graphs, which
    few nodes reach from below."""
    gaps = [gap_of(rings_of(names(count, seed), DEGREE)) for seed in range(draws)]
    assert min(gaps) > 0.75 * random_regular_gap(2 * ring_count(DEGREE))


def test_who_comes_or_goes_changes_one_gap_on_each_ring():
    members = names(64)
    whole = rings_of(members, DEGREE)
    for gone in members[:5]:
        rest = rings_of([each for each in members if each != gone], DEGREE)
        changed = {peer for peer in rest if rest[peer] != whole[peer] - {gone} or gone in whole[peer]}
        assert changed <= whole[gone]
        assert len(changed) <= 2 * ring_count(DEGREE)


def test_a_view_that_lacks_others_than_the_nearest_draws_the_same_edges():
    """No agreement is needed: each knows its own surroundings and half of the rest, every one another half."""
    members, rng = names(64), random.Random(1)
    whole = rings_of(members, DEGREE)
    for peer in members:
        it = Rings(peer, SCOPE, DEGREE)
        it.see([*whole[peer], *rng.sample(members, 32)])
        assert it.wanted == whole[peer]


def test_a_stranger_is_wanted_where_it_would_stand_beside_us():
    members = names(40)
    whole = rings_of(members, DEGREE)
    for newcomer in members[:10]:
        for peer in members[10:]:
            it = Rings(peer, SCOPE, DEGREE)
            it.see(each for each in members if each != newcomer)
            assert it.wants(newcomer) == (newcomer in whole[peer])


def test_another_run_draws_another_graph():
    other = type(SCOPE)(swarm=SCOPE.swarm, run=type(SCOPE.run)(b"o" * 16))
    assert [place_of(SCOPE, ring, ALICE.peer_id) for ring in range(3)] != [
        place_of(other, ring, ALICE.peer_id) for ring in range(3)
    ]
    assert len({place_of(SCOPE, ring, ALICE.peer_id) for ring in range(32)}) == 32


def test_places_that_are_remembered_are_bounded():
    it = Rings(PeerId("me"), SCOPE, DEGREE)
    for start in range(0, 3 * MAX_PLACES, 100):
        it.see(names(100, seed=start))
    assert len(it._places) <= MAX_PLACES


def test_whom_a_peer_hears_of_first_are_its_neighbours_on_the_rings():
    members = names(200)
    whole = rings_of(members, DEGREE)
    near = Rings(members[0], SCOPE, DEGREE).beside(members[7], [each for each in members if each != members[7]], 2)
    assert whole[members[7]] <= set(near)
    assert len(near) <= 4 * ring_count(DEGREE)


def test_an_edge_is_one_that_both_ends_claim():
    a, b, c = tag_of(ALICE.peer_id), tag_of(BOB.peer_id), b"12345678"
    assert len(a) == len(b) == 8
    assert agreed_edges({a: (b, c, a), b: (a,), c: (b,)}) == {a: {b}, b: {a}, c: set()}
    assert agreed_edges({a: (b,)}) == {a: set()}


def test_the_measure_of_the_tests_is_the_algebraic_connectivity_over_the_degree():
    five = names(5)
    full: Graph = {peer: frozenset(five) - {peer} for peer in five}
    assert gap_of(full) == pytest.approx(5 / 4)
    path: Graph = {five[0]: frozenset(five[1:2]), five[1]: frozenset([five[0], five[2]]), five[2]: frozenset(five[1:2])}
    assert gap_of(path) == pytest.approx(1 / np.mean([1, 2, 1]))
    assert gap_of({five[0]: frozenset(), five[1]: frozenset()}) == 0.0
