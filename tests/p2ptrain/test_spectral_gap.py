"""How well a graph ties its members together, on graphs of which the answer is known."""

import math

import pytest

from p2ptrain.aggregate.topology import spectral_gap


def circle(count: int) -> dict[int, set[int]]:
    return {node: {(node - 1) % count, (node + 1) % count} for node in range(count)}


@pytest.mark.parametrize("count", [2, 5, 40])
def test_a_full_mesh_has_n_over_n_minus_1(count: int) -> None:
    mesh = {node: set(range(count)) - {node} for node in range(count)}
    assert spectral_gap(mesh) == pytest.approx(count / (count - 1))


@pytest.mark.parametrize("count", [5, 12, 100])
def test_a_circle_has_less_the_longer_it_is(count: int) -> None:
    assert spectral_gap(circle(count)) == pytest.approx((2 - 2 * math.cos(2 * math.pi / count)) / 2)


def test_what_is_not_connected_has_none() -> None:
    assert spectral_gap({0: {1}, 1: {0}, 2: {3}, 3: {2}}) == pytest.approx(0, abs=1e-12)
    assert spectral_gap({"a": set(), "b": set()}) == 0.0


def test_nobody_and_one_alone_are_no_graph_and_a_neighbour_must_be_a_node() -> None:
    assert math.isnan(spectral_gap({}))
    assert math.isnan(spectral_gap({b"a": frozenset()}))
    with pytest.raises(ValueError, match="no node of the graph"):
        spectral_gap({0: {1}, 1: {0, 2}})
