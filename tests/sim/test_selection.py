"""Real nodes, of which one has a downlink that does not carry all neighbours' updates, on a virtual clock."""

from pathlib import Path

import pytest

from node.simulation.observations import Observations
from node.simulation.scenario_file import load_scenario
from node.simulation.twin import Played, play

SCENARIO = Path(__file__).with_name("narrow_link.toml")
SMALL = (
    "task.hidden=192",
    "train.rounds=16",
    "until_s=68",
    'links.narrow.down="25 kB/s"',
)
"""Updates are half as large as in the file. The link carries four of them a round, with a fifth to spare."""

ROBUST = ("task.unlike=false", 'sync.aggregator="trimmed_mean"', "sync.f=1")
LYING = ("nodes.useless.lies=true", 'attack.name="gaussian"')
"""A liar whose models are as far from the others' as no honest one's."""


def _chosen_by(policy: str) -> str:
    return f'nodes.narrow.settings={{node={{shard_index=0}},selection={{policy="{policy}",most=4}}}}'


def _played(*sets: str) -> Played:
    return play(load_scenario(SCENARIO, (*SMALL, *sets)))


def _narrow(played: Played) -> Observations:
    return played.members["narrow-0"].told


@pytest.mark.thorough
def test_a_node_that_chooses_keeps_up_where_one_that_does_not_falls_behind() -> None:
    without, chosen = _narrow(_played()), _narrow(_played(_chosen_by("useful")))
    assert without.rounds <= 11
    assert chosen.rounds >= 14
    assert chosen.losses[-1][2] < without.losses[-1][2]


@pytest.mark.thorough
def test_a_liar_that_looks_useful_is_chosen_and_does_no_harm_under_a_robust_rule() -> None:
    robust, mean = (_narrow(_played(*LYING, *rule, _chosen_by("useful"))) for rule in (ROBUST, ("task.unlike=false",)))
    assert robust.losses[-1][2] < 0.2
    assert mean.losses[-1][2] > 1.0, "so the lie is one that does harm"


@pytest.mark.thorough
def test_a_neighbour_that_turns_liar_without_leaving_does_no_harm_under_a_robust_rule() -> None:
    turns = ("nodes.home-d.lies=true", 'attack.name="gaussian"', "attack.from_round=8", _chosen_by("useful"))
    robust, mean = (_narrow(_played(*turns, *rule)) for rule in (ROBUST, ("task.unlike=false",)))
    assert robust.losses[-1][2] < 0.2
    before, end = (mean.losses[place][2] for place in (3, -1))
    assert before < 0.3 < 1.0 < end, "so it was honest until then, and the lie is one that does harm"
