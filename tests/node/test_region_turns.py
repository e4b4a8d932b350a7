"""When a node moves by other regions' models, and when it does not."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from gossip.core.api import RegionalPayload, RegionalView
from gossip.core.ids import PeerId
from node.events.event_types import RegionsAveraged, WarningEvent
from node.events.lines import describe
from node.training.node import Node
from node.training.region_turns import MEETING_MOVES, SILENT_MOVES, RegionTurns
from p2ptrain.sync import RoundResult, build
from p2ptrain.sync.regional import RegionalAveraging, RegionalStrategy
from p2ptrain.sync.sync_config import SyncConfig

NUMEL = 8
SETTINGS = {"regions": ("east", "west"), "region_compressor": "none", "f": 0}
CONFIG = SyncConfig(**SETTINGS)


class Around:
    """A node as far as the averaging of regions uses one; each region says that its model is one value everywhere."""

    def __init__(self, config: SyncConfig = CONFIG) -> None:
        self.averaging = RegionalAveraging(config, torch.zeros(NUMEL))
        strategy = build(config, torch.zeros(NUMEL), "me", rounds=100)
        assert isinstance(strategy, RegionalStrategy)
        self.strategy = strategy
        self.turns = RegionTurns(self.averaging, strategy)
        self.views: dict[str, RegionalView] = {}
        self.told: list[Any] = []
        self.beside = frozenset({"west"})

    def say(self, region: str, round: int, value: float) -> None:
        message = self.averaging.encode(torch.full((NUMEL,), value))
        model = RegionalPayload(peer=PeerId(region), codec=message.codec, payload=message.payload)
        self.views[region] = RegionalView(region=region, round=round, needed=1, members=4, models=(model,))

    async def close(self, round: int) -> float:
        """By how much the round's correction moves."""
        result = RoundResult(
            correction_d=torch.zeros(NUMEL),
            anchor_d=torch.zeros(NUMEL),
            consensus_distance=0.0,
            members=1,
            robust=True,
        )
        moved = await self.turns.close(self.node(round), result)
        return float(moved.correction_d[0])

    def node(self, round: int) -> Node:
        async def compute(function: Any, work: object = None) -> Any:
            return function()

        service = SimpleNamespace(
            regional_views=lambda: dict(self.views),
            regions_beside=self.beside,
            publishes_regional=lambda round: False,
            reject_regional=lambda *offence: self.told.append(offence),
        )
        config = SimpleNamespace(train=SimpleNamespace(rounds=100), node=SimpleNamespace(region="east"))
        made = SimpleNamespace(
            state=SimpleNamespace(round=round),
            config=config,
            service=service,
            strategy_lock=_Lock(),
            compute=compute,
            journal=SimpleNamespace(emit=self.told.append),
        )
        return cast("Node", made)


class _Lock:
    async def __aenter__(self) -> None:
        return

    async def __aexit__(self, *error: object) -> None:
        return


async def test_a_region_moves_half_of_the_way_to_one_of_its_size() -> None:
    it = Around()
    it.say("east", 5, 1.0)
    it.say("west", 5, 2.0)
    assert await it.close(7) == pytest.approx(0.5)
    (told,) = [event for event in it.told if isinstance(event, RegionsAveraged)]
    assert told.moved
    assert told.region_margin == -1, "of two regions a lying one cannot be left out"


@pytest.mark.parametrize(("late", "moves"), [(1, 0.5), (2, 0.5), (3, 0.0)])
async def test_who_had_no_model_at_the_turn_moves_as_late_as_models_may_come_and_once(late: int, moves: float) -> None:
    it = Around()
    it.say("east", 5, 1.0)
    assert await it.close(7) == 0.0
    for round_ in range(8, 7 + late):
        assert await it.close(round_) == 0.0
    it.say("west", 5, 2.0)
    assert [await it.close(7 + late), await it.close(8 + late)] == [pytest.approx(moves), 0.0]
    assert [event.moved for event in it.told if isinstance(event, RegionsAveraged)] == [moves > 0]


async def test_a_turn_without_models_is_no_line_of_its_own() -> None:
    """The first node of its region has a turn every eight rounds: the warning after three of them says it once."""
    it = Around()
    it.say("east", 5, 1.0)
    for round_ in range(7, 80):
        await it.close(round_)
    turns = [event for event in it.told if isinstance(event, RegionsAveraged)]
    assert len(turns) > 3
    assert not any(describe(event) for event in turns)
    assert [event.message for event in it.told if isinstance(event, WarningEvent)] == [
        "too few models of region west have come for 3 turns: training goes on without it"
    ]
    (line,) = describe(replace(turns[0], moved=True, regions=2))
    assert line.plain.endswith("moved by the models of 1 of 1 other region")


async def test_a_region_that_is_cut_off_does_not_go_on_showing_what_it_averaged_last() -> None:
    it = Around()
    it.say("east", 5, 1.0)
    it.say("west", 5, 2.0)
    await it.close(7)
    for round_ in (15, 16, 17, 18):
        it.say("east", 13, 1.0)
        assert await it.close(round_) == 0.0
    shown = [(each.round, each.regions, each.beside) for each in it.told if isinstance(each, RegionsAveraged)]
    assert shown == [(8, 2, 1), (18, 0, 1)], "once a turn, when the rounds for late models are over"


async def test_a_run_of_one_region_misses_nothing() -> None:
    it = Around()
    it.beside = frozenset()
    it.say("east", 5, 1.0)
    for round_ in (7, 8, 9, 10):
        await it.close(round_)
    assert it.told == []


async def test_who_has_moved_moves_no_more_by_what_comes_after_the_turn() -> None:
    it = Around()
    it.say("east", 5, 1.0)
    it.say("west", 5, 2.0)
    assert await it.close(7) == pytest.approx(0.5)
    it.say("west", 6, 3.0)
    assert [await it.close(round_) for round_ in (8, 9)] == [0.0, 0.0]


async def test_with_momentum_a_region_goes_beyond_the_mean_by_what_that_has_moved_by_since_the_turn_before() -> None:
    it = Around(SyncConfig(**SETTINGS, region_momentum=0.5))
    moves = []
    for turn, value in enumerate((1.0, 3.0)):
        it.say("east", 8 * turn + 5, value)
        it.say("west", 8 * turn + 5, value + 1.0)
        moves.append(await it.close(8 * turn + 7))
    assert moves == [pytest.approx(0.5), pytest.approx(0.5 + 0.5 * 2.0)]


async def test_a_region_that_was_lost_is_met_once_though_it_is_looked_for_thrice() -> None:
    it = Around(SyncConfig(**{**SETTINGS, "region_rejoin": "medoid"}))
    for turn in range(SILENT_MOVES):
        it.say("east", 8 * turn + 5, 1.0)
        await it.close(8 * turn + 7)
    at = 8 * SILENT_MOVES
    it.say("west", at + 5, 2.0)
    assert [await it.close(at + 7), await it.close(at + 8)] == [0.0, 0.0], "our own model is not here"
    it.say("east", at + 5, 1.0)
    assert await it.close(at + 9) in (0.0, pytest.approx(1.0)), "one of the two models, and not between them"


async def test_who_lacked_its_own_regions_model_moves_when_that_comes() -> None:
    it = Around()
    it.say("west", 5, 2.0)
    assert await it.close(7) == 0.0
    it.say("east", 5, 1.0)
    assert [await it.close(round_) for round_ in (8, 9)] == [pytest.approx(0.5), 0.0]


async def test_a_lost_region_that_is_heard_late_is_met_at_the_medoid_and_counts_as_heard() -> None:
    it = Around(SyncConfig(**{**SETTINGS, "region_rejoin": "medoid"}))
    for turn in range(SILENT_MOVES):
        it.say("east", 8 * turn + 5, 1.0)
        await it.close(8 * turn + 7)
    at = 8 * SILENT_MOVES
    it.say("east", at + 5, 1.0)
    assert await it.close(at + 7) == 0.0
    it.say("west", at + 5, 2.0)
    assert await it.close(at + 8) in (0.0, pytest.approx(1.0)), "one of the two models, and not between them"
    warnings = [event for event in it.told if isinstance(event, WarningEvent)]
    assert [event.recovered for event in warnings] == [None, True]


async def test_by_an_earlier_model_of_its_own_it_does_not_move_again() -> None:
    it = Around()
    it.say("east", 5, 1.0)
    for round_ in (7, 15, 23):
        it.say("west", round_ - 2, 2.0)
        moved = await it.close(round_)
        assert moved == (pytest.approx(0.5) if round_ == 7 else 0.0)
        assert [await it.close(round_ + late) for late in (1, 2)] == [0.0, 0.0]
    assert [event.moved for event in it.told if isinstance(event, RegionsAveraged)] == [True, False, False]


async def test_by_a_model_that_was_used_it_does_not_move_again() -> None:
    it = Around()
    it.say("west", 5, 2.0)
    for round_ in (7, 15):
        it.say("east", round_ - 2, 1.0)
        assert await it.close(round_) == (pytest.approx(0.5) if round_ == 7 else 0.0)


async def test_in_other_rounds_nothing_moves() -> None:
    it = Around()
    it.say("east", 5, 1.0)
    it.say("west", 5, 2.0)
    assert [await it.close(round_) for round_ in (5, 6, 8)] == [0.0, 0.0, 0.0]


async def test_a_silent_region_is_told_of_once_and_so_is_its_return() -> None:
    it = Around()
    for turn in range(1, SILENT_MOVES + 3):
        it.say("east", 8 * turn - 3, 1.0)
        await it.close(8 * turn - 1)
    it.say("west", 8 * turn - 3, 2.0)
    it.say("east", 8 * turn + 5, 1.0)
    await it.close(8 * turn + 7)
    warnings = [event for event in it.told if isinstance(event, WarningEvent)]
    assert [warning.recovered for warning in warnings] == [None, True]
    assert "region west" in warnings[0].message


@pytest.mark.parametrize(("silent", "moves"), [(SILENT_MOVES - 1, 0.5), (SILENT_MOVES, 1.0)])
async def test_a_region_that_was_lost_is_met_at_the_medoid(silent: int, moves: float) -> None:
    """The west is further, so that it stays where it is; after the meeting the mean is taken as ever."""
    it = Around(SyncConfig(**SETTINGS, region_rejoin="medoid"))
    for turn in range(1, silent + MEETING_MOVES + 3):
        it.say("east", 8 * turn - 3, 1.0)
        if turn > silent:
            it.say("west", 8 * turn - 2, 2.0)
        moved = await it.close(8 * turn - 1)
        meeting = silent < turn <= silent + MEETING_MOVES
        assert moved == pytest.approx((moves if meeting else 0.5) if turn > silent else 0.0, abs=0.05), turn


async def test_who_publishes_what_cannot_be_read_is_named() -> None:
    it = Around()
    it.say("east", 5, 1.0)
    spoilt = RegionalPayload(peer=PeerId("liar"), codec="none", payload=b"short")
    it.views["west"] = RegionalView(region="west", round=5, needed=1, members=4, models=(spoilt,))
    assert await it.close(7) == 0.0
    assert [offence[:3] for offence in it.told if isinstance(offence, tuple)] == [("liar", "west", 5)]
