"""What every graph must hold: mixing matrices that keep the mean, within its bounds, and exact where it says so."""

from collections.abc import Sequence
from fractions import Fraction
from functools import partial

import numpy as np
import numpy.typing as npt
import pytest

from p2ptrain import graphs
from p2ptrain.graphs import Graph, Mixing, group_in, mixing_at
from p2ptrain.graphs.passes import drawn

Matrix = npt.NDArray[np.float64]

SEED = b"seed"
DEGREES = (1, 2, 3, 4)
SIZES = range(1, 65)
ANY_N = {"base", "null_cascade"}
"""Those that claim finite-time consensus for every number of members."""


def made(name: str, degree: int) -> Graph | None:
    """The graph with so many partners; None where it has another number of them alone."""
    try:
        return graphs.get(name, group=degree + 1)
    except ValueError:  # which the test of refusals reads
        return None


GRAPHS = [pytest.param(graph, id=f"{name}-{k}") for name in graphs.names() for k in DEGREES if (graph := made(name, k))]
every_graph = pytest.mark.parametrize("graph", GRAPHS)


def names_of(n: int) -> list[str]:
    return [f"n{i:02}" for i in range(n)]


def matrix(mixing: Mixing, names: Sequence[str]) -> Matrix:
    place = {name: number for number, name in enumerate(names)}
    w = np.zeros((len(names), len(names)))
    for name, partners in mixing.items():
        for other, weight in partners.items():
            w[place[name], place[other]] = weight
        w[place[name], place[name]] = 1 - sum(map(float, partners.values()))
    return w


def rounds_of(graph: Graph, n: int, number: int = 0) -> list[Mixing]:
    """The rounds of a pass."""
    period = graph.period(n)
    return [mixing_at(graph, names_of(n), SEED, number * period + index) for index in range(period)]


def test_every_graph_is_tried() -> None:
    assert {param.values[0].name for param in GRAPHS} == set(graphs.names())


@every_graph
def test_rounds_are_doubly_stochastic_and_within_their_degree(graph: Graph) -> None:
    for n in SIZES:
        names = names_of(n)
        for mixing in rounds_of(graph, n):
            assert sorted(mixing) == names
            assert all(name not in partners for name, partners in mixing.items())
            assert max(map(len, mixing.values())) <= graph.group - 1
            w = matrix(mixing, names)
            assert w.min() > -1e-12
            np.testing.assert_allclose(w.sum(0), 1, atol=1e-12)
            np.testing.assert_allclose(w.sum(1), 1, atol=1e-12)
            if graph.symmetric:
                np.testing.assert_array_equal(w, w.T)


@every_graph
def test_a_pass_is_the_mean_of_all_where_that_is_claimed(graph: Graph) -> None:
    claimed = set()
    for n in SIZES:
        product = np.eye(n)
        for mixing in rounds_of(graph, n):
            product = matrix(mixing, names_of(n)) @ product
        if graph.is_exact(n):
            claimed.add(n)
            np.testing.assert_allclose(product, np.full((n, n), 1 / n), rtol=0, atol=1e-12)
        else:
            assert abs(product - 1 / n).max() > 1e-3, "it could claim more"
    assert claimed == set(SIZES) if graph.name in ANY_N else claimed < set(SIZES)


@every_graph
def test_its_rounds_have_the_form_that_it_says(graph: Graph) -> None:
    steps = set()
    for n in SIZES:
        for mixing in rounds_of(graph, n):
            try:
                groups = {name: group_in(mixing, name) for name in mixing}
            except ValueError:
                assert graph.form == "edges"
                return
            steps |= {group.step for group in groups.values()}
            for name, (members, step) in groups.items():
                assert all(groups[other] == groups[name] for other in members)
                if graph.form == "means":
                    assert step == 1.0, "exactly, since a mean is then taken as it came"
                assert 0 < step < 2
    assert graph.form == ("means" if steps == {1.0} else "steps")


@every_graph
def test_members_who_know_the_same_agree_and_names_change_places(graph: Graph) -> None:
    for n in (7, 12):
        names = names_of(n)
        passes = [rounds_of(graph, n, number) for number in range(2 + 40 // graph.period(n))]
        for index in range(graph.period(n)):
            assert mixing_at(graph, list(reversed(names)), SEED, index) == passes[0][index]
            assert mixing_at(graph, set(names), SEED, index) == passes[0][index]
        assert any(one != passes[0] for one in passes[1:])
        pairs = {
            frozenset((name, other)) for rounds in passes for each in rounds for name in each for other in each[name]
        }
        assert len(pairs) > 0.7 * n * (n - 1) / 2, "most have met most"
        other = [mixing_at(graph, names, b"other seed", round) for round in range(graph.period(n))]
        assert other != passes[0]


@every_graph
def test_one_member_has_nobody(graph: Graph) -> None:
    assert mixing_at(graph, ["alone"], SEED, 3) == {"alone": {}}
    assert group_in({"alone": {}}, "alone") == (frozenset({"alone"}), 1.0)


@every_graph
def test_a_group_that_it_cannot_keep_to_is_refused(graph: Graph) -> None:
    with pytest.raises(ValueError, match=r"group (must be at least 2|to 2|to 3), not 1"):
        graphs.get(graph.name, group=1)


def test_an_unknown_graph_is_refused_with_those_there_are() -> None:
    with pytest.raises(ValueError, match="there are: base, directed_exponential, exponential, grid, matching"):
        graphs.get("torus")


@pytest.mark.parametrize("degree", DEGREES)
def test_the_base_graph_takes_few_rounds(degree: int) -> None:
    graph = graphs.get("base", group=degree + 1)
    for n in range(2, 200):
        assert graph.period(n) <= 2 * np.log(n) / np.log(degree + 1) + 2 + 1e-9


def test_the_lengths_of_the_base_graph() -> None:
    pairs, fours = (graphs.get("base", group=group) for group in (2, 4))
    assert [pairs.period(n) for n in (2, 3, 4, 5, 6, 7, 8, 10)] == [1, 3, 2, 5, 4, 5, 3, 6]
    assert [fours.period(n) for n in (4, 5, 8, 10, 16, 25, 32)] == [1, 3, 2, 4, 2, 5, 3]


@pytest.mark.parametrize(
    ("n", "group", "steps"),
    [
        (8, 2, {"1"}),
        (8, 4, {"1"}),
        (10, 4, {"1", "8/5"}),  # two times 5 = 4 + 1
        (25, 4, {"1", "32/25", "4/3"}),  # 25 = 16 + 2 * 4 + 1
    ],
)
def test_the_steps_of_the_base_graph(n: int, group: int, steps: set[str]) -> None:
    graph = graphs.get("base", group=group)
    found = {group_in(mixing, name).step for mixing in rounds_of(graph, n) for name in mixing}
    assert found == {float(Fraction(step)) for step in steps}


def test_the_cascade_is_exact_wherever_it_begins() -> None:
    """Matrices of one order commute."""
    graph = graphs.get("null_cascade")
    for n in (6, 7, 12, 15, 32):
        names = names_of(n)
        ws = [matrix(graph.mixing(names, index, partial(drawn, SEED, 0)), names) for index in range(graph.period(n))]
        for first in range(len(ws)):
            product = np.eye(n)
            for w in (*ws[first:], *ws[:first]):
                product = w @ product
            np.testing.assert_allclose(product, np.full((n, n), 1 / n), rtol=0, atol=1e-12)
    assert [graph.period(n) for n in (2, 4, 8, 16, 32, 64)] == [1, 2, 3, 4, 5, 6]
    assert [graph.period(n) for n in (3, 7, 13)] == [1, 3, 6]


def test_a_chain_is_no_group() -> None:
    half = Fraction(1, 2)
    chain: Mixing = {"a": {"b": half}, "b": {"a": half, "c": Fraction(1, 4)}, "c": {"b": Fraction(1, 4)}}
    with pytest.raises(ValueError, match="no group"):
        group_in(chain, "b")
    uneven: Mixing = {"a": {"b": half}, "b": {"a": Fraction(1, 3)}}
    with pytest.raises(ValueError, match="no group"):
        group_in(uneven, "a")
