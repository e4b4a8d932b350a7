"""Real nodes, of which one has a downlink that does not carry all neighbours' updates, on a virtual clock."""

from pathlib import Path

import pytest
import trio
from sim_swarm import Swarm, played

from node.selection.chooser import WARM_UP
from node.simulation.observations import Observations
from node.simulation.scenario_file import load_scenario
from node.simulation.twin import Played, play
from node.training.round_report import readings

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


def test_a_choice_is_told_once_it_is_another_one_and_is_a_metric(tmp_path: Path) -> None:
    chooses = {"policy": "nearest", "most": 3, "explore": 0.0}

    async def main(members: Swarm) -> None:
        for number in range(5):
            selection = chooses if number == 4 else {}
            await members.start(f"n{number}", wait_for=number, selection=selection, train={"rounds": 60})
        one, others = members.members["n4"], list(members.members.values())[:4]
        assert readings(one.node).fetched_first == {}
        while len(one.told("round")) < 12:  # noqa: ASYNC110  # of another's state
            await trio.sleep(0.1)
        told, first = one.told("chosen"), readings(one.node).fetched_first
        assert not any(member.told("chosen") for member in others)
        assert not readings(others[0].node).fetched_first
        assert len(told) == 1, "with nobody explored it stays as it is"
        assert WARM_UP <= told[0]["round"] < 12
        assert (len(told[0]["first"]), told[0]["explored"]) == (3, [])
        assert set(first) == {member.node.peer_id for member in others}
        assert [peer for peer in sorted(first) if first[peer]] == told[0]["first"]
        for member in members.members.values():
            member.stop.set()
        await members.finished()

    played(main, tmp_path)
