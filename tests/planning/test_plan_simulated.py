"""A plan against simulations: what is compared, and that what is foretold to be sooner is sooner."""

import math

import pytest
from sizes import thorough_but

from node.planning.simulated_runs import (
    RULES,
    SwarmSetup,
    drawn_setup,
    foretold,
    loaded_setup,
    rank_correlation,
    simulated_time,
    time_to_loss,
)
from node.simulation.observations import Observations


def setup(number: int, **more) -> SwarmSetup:
    usual = {"nodes": 4, "degree": 3, "up_mbit": 2.0, "step_s": 0.1, "rtt_s": 0.08, "inner_steps": 4, "sync": RULES[0]}
    return SwarmSetup(number=number, **usual | more)


FAST_TO_SLOW = [
    setup(0, step_s=0.02, up_mbit=10.0),
    setup(1, step_s=0.05),
    setup(2),
    setup(3, up_mbit=0.05, step_s=0.05, inner_steps=8),
    setup(4, up_mbit=0.05, inner_steps=1),
    setup(5, step_s=0.5),
]
"""None is told from the next one by the order in which it is simulated; 3 and 4 are bound by their link."""


@pytest.mark.thorough
@pytest.mark.parametrize("every", thorough_but({2}, [1, 2]))
def test_what_is_foretold_to_be_sooner_at_a_loss_is_sooner_there(every):
    setups = FAST_TO_SLOW[::every]
    times = [simulated_time(each, target=0.5, most_steps=160).seconds for each in setups]
    assert all(math.isfinite(each) for each in times)
    assert max(times) > 5 * min(times), "or there is nothing to foretell"
    foretold_days = [foretold(each).days_to_equal_loss for each in setups]
    assert rank_correlation(foretold_days, times) > 0.9


def test_ranks_are_spearmans():
    assert rank_correlation([1, 2, 3, 4], [10, 20, 30, 1000]) == pytest.approx(1)
    assert rank_correlation([1, 2, 3], [3, 2, 1]) == pytest.approx(-1)
    assert rank_correlation([1, 2, 3, 4, 5], [5, 6, 7, 8, 7]) == pytest.approx(0.8207826817)  # scipy.stats.spearmanr
    assert rank_correlation([1, 2, 3, 4], [1, 2, math.inf, math.inf]) == pytest.approx(0.9486832981)
    with pytest.raises(ValueError, match="three pairs"):
        rank_correlation([1, 2], [1, 2])


def test_a_configuration_is_drawn_by_its_number_alone():
    drawn = [drawn_setup(number, seed=5) for number in range(40)]
    assert drawn[17] == drawn_setup(17, seed=5)
    assert drawn[17] != drawn_setup(17, seed=6)
    assert {each.sync["strategy"] for each in drawn} == {"tracked_gossip", "sparse_loco"}
    assert len({each.nodes for each in drawn}) > 3
    assert all(1 <= each.degree < each.nodes for each in drawn)


def test_plan_and_simulation_are_told_the_same():
    one = setup(7, up_mbit=0.5, rtt_s=0.2, inner_steps=6)
    scenario = loaded_setup(one, seed=3, most_steps=60).scenario
    (group,) = scenario.nodes
    assert (group.count, scenario.mode, scenario.seed) == (4, "large", 3)
    assert scenario.links["planned"].up == 0.5e6 / 8
    assert scenario.devices["planned"].step_s == one.step_s
    assert scenario.latency_s("anywhere", "anywhere") == 0.1
    assert scenario.train["rounds"] == 10
    assert scenario.train["inner_steps"] == 6
    assert scenario.network["degree"] == foretold(one).traffic.neighbours


def test_the_time_to_a_loss_lies_between_two_evaluations():
    def told(*losses):
        return Observations(None, losses=[(10.0 * at, at, loss) for at, loss in losses])

    nodes = [told((1, 2.0), (2, 0.5), (3, 0.2)), told((1, 2.0), (2, 0.5))]
    found = time_to_loss(nodes, 5, 1.0)
    assert (found.seconds, found.steps) == (pytest.approx(15), pytest.approx(7.5))
    assert found.round_s == pytest.approx(10)
    assert math.isinf(time_to_loss(nodes, 5, 0.3).seconds), "only one of the two has been evaluated there"
    assert time_to_loss(nodes, 5, 3.0).seconds == 10
