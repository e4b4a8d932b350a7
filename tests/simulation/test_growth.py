"""What a node costs beside learning grows at most with the logarithm of the swarm."""

import math
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from sizes import thorough_but

from node.simulation.growth import NodeCosts, scenario_text, steady_costs
from node.simulation.large.large import play_large
from node.simulation.scenario_file import load_scenario
from node.simulation.twin import play

ROUNDS, END_S = 14, 26.0
ANNOUNCED_ROUNDS, ROUND_S = 32, 2.0
WAKE_UPS, CONTROL_BYTES = 42.0, 7_000.0
"""Of a node and virtual second, for each doubling of the swarm: a tenth above the most that was measured up to 32 nodes
(docs/benchmarks.md)."""


@pytest.fixture(scope="module")
def costs_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], NodeCosts]:
    """What each of so many nodes takes; a number is simulated once."""

    @cache
    def costs(nodes: int) -> NodeCosts:
        path = tmp_path_factory.mktemp("growth") / "growth.toml"
        path.write_text(scenario_text(nodes, ROUNDS), encoding="utf-8")
        return steady_costs(play(load_scenario(path)), end_s=END_S)

    return costs


@pytest.mark.thorough
@pytest.mark.parametrize("nodes", thorough_but([8, 16], [8, 16, 32]))
def test_wake_ups_and_control_bytes_stay_below_what_grows_with_log_n(
    costs_of: Callable[[int], NodeCosts], nodes: int
) -> None:
    costs = costs_of(nodes)
    assert 0 < costs.wake_ups <= WAKE_UPS * math.log2(nodes)
    assert 0 < costs.control_bytes <= CONTROL_BYTES * math.log2(nodes)


def test_a_run_that_is_too_short_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "growth.toml"
    path.write_text(scenario_text(2, 1), encoding="utf-8")
    with pytest.raises(ValueError, match="give it more rounds"):
        steady_costs(play(load_scenario(path)), end_s=END_S)


def test_a_cut_run_ends_there_and_measures_the_same_until_then(tmp_path: Path) -> None:
    path = tmp_path / "growth.toml"
    costs = []
    for cut_s in (None, 9.0):
        path.write_text(scenario_text(3, 8, cut_s=cut_s), encoding="utf-8")
        played = play(load_scenario(path))
        costs.append(steady_costs(played, begin_s=2.0, end_s=8.0))
    assert costs[0] == costs[1]
    assert played.virtual_s < 10
    assert not any(member.finished for member in played.members.values())


def control_of(folder: Path, nodes: int) -> float:
    path = folder / "large.toml"
    path.write_text(scenario_text(nodes, 1, mode="large"), encoding="utf-8")
    return play_large(load_scenario(path)).swarm.announce(ANNOUNCED_ROUNDS, ROUND_S) / ROUND_S


@pytest.mark.parametrize("nodes", thorough_but([16, 64], [16, 64, 512, 1000]))
def test_control_bytes_of_a_large_swarm_stay_below_the_same_line(tmp_path: Path, nodes: int) -> None:
    """Of the members' links every k-th goes all the way, and k grows with the swarm (gossip/updates/audits.py)."""
    assert 0 < control_of(tmp_path, nodes) <= CONTROL_BYTES * math.log2(nodes)


@pytest.mark.thorough
def test_the_arithmetic_is_what_real_nodes_send(tmp_path: Path, costs_of: Callable[[int], NodeCosts]) -> None:
    """At 16 nodes, who have settled after 10 s. It counts more repetitions, as rounds are a little shorter than 2 s."""
    assert control_of(tmp_path, 16) == pytest.approx(costs_of(16).control_bytes, rel=0.2)
