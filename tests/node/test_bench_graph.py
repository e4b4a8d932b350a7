"""The graphs of simulated swarms: as many neighbours as asked for, all reachable, alike everywhere."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.bench.swarm import graph


def reachable(neighbours: graph.Neighbours) -> set[int]:
    seen, edge = {0}, {0}
    while edge:
        edge = {other for node in edge for other in neighbours[node]} - seen
        seen |= edge
    return seen


@st.composite
def regular(draw) -> tuple[int, int]:
    nodes = draw(st.integers(3, 40))
    degree = draw(st.integers(2, nodes - 1).filter(lambda degree: nodes * degree % 2 == 0))
    return nodes, degree


@given(regular(), st.integers(0, 1000))
def test_regular_graphs_are_what_they_say(size, seed):
    nodes, degree = size
    found = graph.build("regular", nodes, degree, seed)
    assert [len(each) for each in found] == [degree] * nodes
    assert all(node not in each for node, each in enumerate(found))
    assert all(node in found[other] for node, each in enumerate(found) for other in each)
    assert reachable(found) == set(range(nodes))
    assert found == graph.build("regular", nodes, degree, seed)


def test_few_hops_lead_anywhere():
    found = graph.build("regular", 32, 4, 0)
    distance, edge, hops = {0: 0}, {0}, 0
    while len(distance) < 32:
        hops += 1
        edge = {other for node in edge for other in found[node]} - distance.keys()
        distance |= dict.fromkeys(edge, hops)
    assert hops <= 5  # a ring with its next two on either side needs 8


def test_liars_do_not_stand_in_a_row_for_every_seed():
    last = [graph.build("regular", 16, 4, seed)[15] for seed in range(8)]
    assert len(set(last)) > 4


@given(st.integers(2, 20))
def test_a_dumbbell_is_two_halves_and_one_edge(half):
    found = graph.build("dumbbell", 2 * half, 0, 0)
    across = {(node, other) for node, each in enumerate(found) for other in each if node % 2 != other % 2}
    assert across == {(0, 1), (1, 0)}
    assert all(len(each) == half - 1 + (node < 2) for node, each in enumerate(found))


@given(st.integers(2, 10), st.integers(1, 5))
def test_liars_stand_at_the_ends_of_the_bridge(half, liars):
    honest = 2 * half
    found = graph.build("dumbbell", honest + liars, 0, 0, liars)
    known = [each & set(range(honest)) for each in found]
    assert known[:honest] == graph.build("dumbbell", honest, 0, 0)
    assert known[honest:] == [{node % 2} for node in range(honest, honest + liars)]
    assert all(node in found[other] for node, each in enumerate(found) for other in each)
    assert sum(map(len, found[honest:])) == liars  # no liar needs another one


def test_small_swarms():
    assert graph.build("regular", 1, 4, 0) == [frozenset()]
    assert graph.build("regular", 2, 1, 0) == [frozenset({1}), frozenset({0})]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("ring", 8, 2, 0), "regular, dumbbell"),
        (("regular", 8, 8, 0), "between 1 and 7"),
        (("regular", 8, 0, 0), "between 1 and 7"),
        (("regular", 8, 1, 0), "no path connects"),
        (("regular", 7, 3, 0), "must be even"),
        (("dumbbell", 7, 0, 0), "even number"),
        (("dumbbell", 2, 0, 0), "4 or more"),
        (("dumbbell", 8, 0, 0, 1), "even number of honest nodes"),
        (("dumbbell", 8, 0, 0, 6), "4 or more"),
    ],
)
def test_graphs_that_cannot_be(arguments, said):
    with pytest.raises(ValueError, match=said):
        graph.build(*arguments)
