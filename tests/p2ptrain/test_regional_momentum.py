"""Momentum of regions: Nesterov's step on their mean, alike at all members, and what who has not seen a turn does."""

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from pydantic import TypeAdapter

from p2ptrain.sync.regional import RegionalAveraging, RegionModels
from p2ptrain.sync.sync_config import SyncConfig

NUMEL = 32
EVERY = 8
MU = 0.5
REGIONS = ("east", "west", "north", "south")


class Members:
    """A member of each region, which hear all that is published. What a region learns it is told."""

    def __init__(self, regions: int = 2, **settings: object) -> None:
        chosen = {"region_compressor": "none", "f": 0, "regions": REGIONS[:regions], "region_momentum": MU, **settings}
        self.config = SyncConfig(**chosen)
        self.averagings = [self.newcomer() for _ in range(regions)]
        self.places = [0.0] * regions

    def newcomer(self) -> RegionalAveraging:
        return RegionalAveraging(self.config, torch.zeros(NUMEL))

    def turn(self, number: int, *learned: float, apart: bool = False, lies: float | None = None) -> list[float]:
        """Return where regions are after a turn. `lies`: what the last one says in place of its model."""
        self.places = [place + each for place, each in zip(self.places, learned, strict=True)]
        said = self.places if lies is None else [*self.places[:-1], lies]
        return self.moved(number, said, apart=apart)

    def moved(self, number: int, said: list[float], *, apart: bool = False) -> list[float]:
        models = [self._models(number, value, name) for value, name in zip(said, REGIONS, strict=False)]
        for place, averaging in enumerate(self.averagings):
            others = [model for at, model in enumerate(models) if at != place]
            shift = averaging.shift(models[place], others, beside=len(others), apart=apart)
            assert shift.shift_d is not None
            self.places[place] += float(shift.shift_d[0])
        return list(self.places)

    def _models(self, number: int, value: float, name: str) -> RegionModels:
        message = self.averagings[0].encode(torch.full((NUMEL,), value))
        return RegionModels(models=[message], needed=1, members=4, round=EVERY * number + 5, name=name)


def reference(turns: list[tuple[float, float]], mu: float = MU) -> list[float]:
    """Where two regions are after each turn, in float64: the first goes to the mean."""
    at, velocity, seen = 0.0, 0.0, []
    for number, learned in enumerate(turns):
        mean = at + sum(learned) / 2
        velocity = mu * velocity + mean - at if number else 0.0
        at = mean + mu * velocity
        seen.append(at)
    return seen


@given(st.lists(st.tuples(*[st.floats(-4, 4, width=32)] * 2), min_size=1, max_size=6))
def test_all_regions_go_where_nesterov_goes_from_their_mean(turns):
    it = Members()
    for number, (learned, place) in enumerate(zip(turns, reference(turns), strict=True)):
        assert it.turn(number, *learned) == pytest.approx([place] * 2, abs=1e-3)


def test_without_momentum_regions_go_to_their_mean_and_keep_nothing():
    it = Members(region_momentum=0.0)
    assert [it.turn(number, 1.0, 3.0) for number in range(3)] == [[2.0, 2.0], [4.0, 4.0], [6.0, 6.0]]
    assert it.averagings[0]._momentum._before is None


def test_what_is_moved_by_momentum_is_no_movement_of_the_next_turn():
    it = Members()
    it.turn(0, 0.0, 0.0)
    assert it.turn(1, 4.0, 4.0) == pytest.approx([6.0, 6.0])
    assert it.turn(2, 0.0, 0.0) == pytest.approx([7.0, 7.0]), "what is left of the velocity: 0.5 * 0.5 * 4"


def test_who_has_not_seen_the_turn_before_goes_to_the_mean_and_then_where_the_others_go():
    it = Members()
    for number in range(4):
        it.turn(number, 1.0, 1.0)
    before = it.places[0]
    it.averagings[1] = it.newcomer()
    east, west = it.turn(4, 1.0, 1.0)
    assert west == pytest.approx(before + 1.0)
    assert east > west + 0.5
    it.places[1] = it.places[0]  # its region's rounds
    east, west = it.turn(5, 1.0, 1.0)
    assert west == pytest.approx(east)
    assert east == pytest.approx(reference([(1.0, 1.0)] * 6)[-1]), "as if all had seen all turns"


@pytest.mark.parametrize("missed", [2, 5])
def test_after_turns_that_were_missed_nobody_goes_beyond_the_mean(missed):
    it = Members()
    it.turn(0, 0.0, 0.0)
    it.turn(1, 1.0, 1.0)
    before = it.places[0]
    assert it.turn(1 + missed, 10.0, 12.0) == pytest.approx([before + 11.0] * 2)


@pytest.mark.parametrize("rejoin", ["mean", "medoid"])
def test_regions_that_meet_after_a_time_apart_go_where_they_meet_and_no_further(rejoin):
    plain, it = (Members(region_momentum=mu, region_rejoin=rejoin) for mu in (0.0, MU))
    for members in (plain, it):
        members.turn(0, 0.0, 0.0)
        members.turn(1, 1.0, 1.0)
        members.places = [5.0, 9.0]
    assert it.turn(2, 0.0, 0.0, apart=True) == plain.turn(2, 0.0, 0.0, apart=True)
    at = it.places[0]
    assert it.turn(3, 0.0, 0.0) == pytest.approx([at] * 2), "the meeting is no movement"


@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=8))
def test_of_four_regions_one_that_lies_leaves_three_that_agree_where_they_would_be(lies):
    it = Members(4, f=1)
    it.turn(0, 0.0, 0.0, 0.0, 0.0)
    for number, lie in enumerate(lies, 1):
        honest = it.turn(number, 1.0, 1.0, 1.0, 0.0, lies=lie)[:3]
        assert honest == pytest.approx([honest[0]] * 3, abs=1e-3)
        it.places[-1] = it.places[0]
    truth = Members(4, f=1)
    for number in range(len(lies) + 1):
        truth.turn(number, *[1.0 if number else 0.0] * 4)
    assert it.places[0] == pytest.approx(truth.places[0], abs=1e-2)


def test_a_pull_of_a_liar_among_two_regions_comes_to_no_more_than_its_share_by_one_less_mu():
    pulls = {}
    for mu in (0.0, MU):
        it = Members(region_momentum=mu)
        it.turn(0, 0.0, 0.0)
        for number in range(1, 30):
            at = it.places[0]
            it.turn(number, 0.0, 0.0, lies=at + 1.0)
            it.places[-1] = it.places[0]
        pulls[mu] = it.places[0] - at
    assert pulls[0.0] == pytest.approx(0.5)
    assert pulls[MU] == pytest.approx(0.5 / (1 - MU), rel=1e-3)


@pytest.mark.parametrize("momentum", [-0.1, 1.0, float("nan")])
def test_a_momentum_that_cannot_be_is_refused(momentum):
    with pytest.raises(ValueError, match="region_momentum must be in"):
        SyncConfig(region_momentum=momentum)


def test_settings_say_momentum_where_there_is_some_and_else_nothing():
    section, regions = TypeAdapter(SyncConfig), ("east", "west")
    plain, moved = SyncConfig(regions=regions), SyncConfig(regions=regions, region_momentum=0.3)
    assert "region_momentum" not in section.dump_python(plain)
    assert "region_momentum" not in section.dump_python(SyncConfig(region_momentum=0.3)), "in a flat swarm it is none"
    assert section.dump_python(moved)["region_momentum"] == 0.3
    assert moved.run_key() == f"{plain.run_key()} momentum 0.3"
    assert SyncConfig(region_momentum=0.3).run_key() == ""
