"""Over whom a node has a lead that lasts, what it tells of that, and when it goes back."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
from sim_swarm import key_of

from gossip.core.ids import PeerId
from node.config.schema import Config
from node.events.event_types import WarningEvent
from node.training import rollback
from node.training.lead import AHEAD_S, Lead
from node.training.pace import Pace
from node.training.run_state import RunState
from node.training.run_watch import RunWatch
from p2ptrain.training import TrainConfig

B, C, D = (key_of(name).peer_id for name in "bcd")


def test_a_lead_counts_over_those_that_have_trained_behind_for_long():
    lead = Lead()
    assert lead.over({B: 3, C: 3}, mine=20, now=0.0) == set()
    assert lead.over({B: 4, C: 3, D: 1}, mine=21, now=AHEAD_S / 2) == set()
    assert lead.over({B: 9, C: 3, D: 2}, mine=25, now=AHEAD_S) == {B}, "c stands still, d came later"
    assert lead.over({B: 10, C: 9, D: 7}, mine=27, now=1.5 * AHEAD_S) == {B, C, D}


def test_who_is_slower_is_nobody_to_go_back_to():
    lead = Lead()
    lead.over({B: 3, C: 3}, mine=20, now=0.0)
    assert lead.over({B: 3 + 75, C: 3 + 74}, mine=120, now=AHEAD_S) == {B}


def test_who_caught_up_meanwhile_is_counted_anew():
    lead = Lead()
    lead.over({B: 3, C: 3}, mine=20, now=0.0)
    lead.over({C: 4}, mine=21, now=AHEAD_S / 2)
    assert lead.over({B: 20, C: 5}, mine=22, now=AHEAD_S) == {C}
    lead.begin()
    assert lead.over({B: 30, C: 6}, mine=23, now=2 * AHEAD_S) == set()


def test_who_has_gone_back_itself_is_counted_from_there():
    """Of two that were ahead, the one less so goes back first, and trains on at our pace."""
    lead = Lead()
    lead.over({B: 700}, mine=900, now=0.0)
    assert lead.over({B: 300}, mine=910, now=AHEAD_S) == set()
    assert lead.over({B: 310}, mine=920, now=1.5 * AHEAD_S) == set()
    assert lead.over({B: 320}, mine=930, now=2 * AHEAD_S) == {B}


def test_who_stands_still_as_we_do_is_nobody_to_go_back_to():
    lead = Lead()
    lead.over({B: 3, C: 3}, mine=20, now=0.0)
    assert lead.over({B: 3, C: 4}, mine=20, now=AHEAD_S) == {C}


@dataclass
class Neighbours:
    """A service that knows of neighbours' rounds, and nothing else."""

    rounds: dict[PeerId, int]
    newcomers: frozenset[PeerId] = frozenset()
    outvoted_liars: bool = False
    stood_with: frozenset[PeerId] = frozenset()
    regions_beside: frozenset[str] = frozenset()

    @property
    def neighbour_ids(self) -> frozenset[PeerId]:
        return frozenset(self.rounds)

    def neighbours(self) -> dict[PeerId, SimpleNamespace]:
        return {peer: SimpleNamespace(gives=True, round=at) for peer, at in self.rounds.items()}

    def seated(self, neighbours: Mapping[PeerId, object]) -> set[PeerId]:
        return set(neighbours) - self.newcomers

    def arrivals(self, round: int) -> None:
        return None

    def exchange_seconds(self) -> None:
        return None


def state_in(round: int) -> RunState:
    config = Config(train=TrainConfig(rounds=1000))
    state = RunState(config=config, pace=Pace("fixed", 4, f=1, own="own", clock=lambda: 0.0))
    state.enter_round(round)
    return state


PEERS = [key_of(name).peer_id for name in "bcdefg"]


@pytest.mark.parametrize(
    ("behind", "level", "newcomers", "goes"),
    [
        (2, 2, 0, False),  # a half is no majority
        (3, 2, 0, True),
        (1, 0, 0, False),  # one may lie
        (2, 0, 0, True),
        (3, 2, 2, False),  # of five, three are seated, and one of these is behind
    ],
)
async def test_a_node_goes_back_to_more_than_f_and_more_than_half(
    autojump_clock, monkeypatch, behind: int, level: int, newcomers: int, goes: bool
) -> None:
    async def rejoin(node: object) -> bool:
        return True

    async def offload(work: object) -> None:
        return None

    monkeypatch.setattr(rollback, "rejoin", rejoin)
    told: list[WarningEvent] = []
    state, names = state_in(50), PEERS[: behind + level]
    node: Any = SimpleNamespace(
        state=state,
        config=state.config,
        service=Neighbours({}, newcomers=frozenset(names[:newcomers])),
        journal=SimpleNamespace(emit=told.append),
        executor=SimpleNamespace(offload=offload),
        checkpoints=SimpleNamespace(set_all_aside=None),
    )
    went = []
    for passed in (0, 20):
        node.service.rounds = {peer: (10 if at < behind else 50) + passed for at, peer in enumerate(names)}
        state.enter_round(50 + passed)
        went.append(await rollback.roll_back(node))
        await trio.sleep(AHEAD_S)
    assert went == [False, goes]
    assert (state.rolled_back, len(told)) == (goes, goes)


def test_who_went_back_saves_its_model_before_the_next_one_is_due() -> None:
    state = state_in(6)
    state.config = state.config.model_copy(update={"node": replace(state.config.node, checkpoint_every=0)})
    state.saved_round = 60
    assert not state.checkpoint_due()
    state.rolled_back = True
    assert state.checkpoint_due(), "the newest one is of what it trained alone"
    state.saved_round = None
    assert state.checkpoint_due(), "that one is set aside"
    state.saved_round = 7
    assert not state.checkpoint_due()


def test_an_operator_is_told_once_that_most_train_without_the_node() -> None:
    told: list[WarningEvent] = []
    state, service = state_in(70), Neighbours({})
    watch = RunWatch(
        journal=cast(Any, SimpleNamespace(emit=told.append)),
        service=cast(Any, service),
        state=state,
        counts=cast(Any, None),
        needed_members=3,
        promises=True,
    )
    watch.in_time = cast(Any, SimpleNamespace(add=lambda arrivals: None, is_low=True))
    for round in range(70, 83):
        service.rounds = dict.fromkeys(PEERS[:3], round - 50)
        state.enter_round(round)
        state.closed_round = round - 1
        watch.check_arrivals(cast(Any, SimpleNamespace(step_seconds=0.1, steps=4)))
    (warning,) = told
    assert "3 of 3 neighbours are 50 rounds or more behind, and train without this node" in warning.message
    assert "this node takes their model once that has lasted" in warning.message


@pytest.mark.parametrize(("rounds", "told"), [((5, 114, 128, 138, 148), True), ((5, 60, 114, 160, 300), False)])
def test_an_operator_is_told_once_that_the_node_falls_behind_again_and_again(
    rounds: tuple[int, ...], told: bool
) -> None:
    heard: list[WarningEvent] = []
    watch = RunWatch(
        journal=cast(Any, SimpleNamespace(emit=heard.append)),
        service=cast(Any, None),
        state=state_in(70),
        counts=cast(Any, None),
        needed_members=3,
        promises=True,
    )
    for entered in (*rounds, *(rounds[-1] + 10 * at for at in range(1, 3))):
        watch.note_joined(entered)
    assert ["node.pace=dylu" in each.message for each in heard] == [True] * told
