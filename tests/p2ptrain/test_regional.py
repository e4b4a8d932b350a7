"""Averaging of regions: the mean of all members where nobody lies, and within the honest range where few do."""

from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given

from p2ptrain.sync import Message, build
from p2ptrain.sync.model_averaging import ModelAveraging
from p2ptrain.sync.regional import RegionalAveraging, RegionalShift, RegionModels, around_medoid
from p2ptrain.sync.strategy_spec import GOSSIP
from p2ptrain.sync.sync_config import SYNC_STRATEGIES, SyncConfig

NUMEL = 64
GENESIS = torch.linspace(-1, 1, NUMEL)


def averaging(**settings: object) -> RegionalAveraging:
    return RegionalAveraging(SyncConfig(**{"region_compressor": "none", **settings}), GENESIS)


def region(
    it: RegionalAveraging,
    *models_d: torch.Tensor,
    needed: int = 3,
    members: int = 4,
    round: int = 8,
    name: str = "",
) -> RegionModels:
    models = [it.encode(model_d) for model_d in models_d]
    return RegionModels(models=models, needed=needed, members=members, round=round, name=name)


def alike(it: RegionalAveraging, value: float, **how: Any) -> RegionModels:
    """A region whose publishers say the same."""
    return region(it, *[GENESIS + value] * 4, **how)


def moved(own: float, *others: float, beside: int | None = None, **settings: object) -> RegionalShift:
    it = averaging(**settings)
    return it.shift(
        alike(it, own), [alike(it, each) for each in others], beside=len(others) if beside is None else beside
    )


def value(shift: RegionalShift) -> float:
    assert shift.shift_d is not None
    assert torch.allclose(shift.shift_d, shift.shift_d[0].expand(NUMEL), atol=1e-6)
    return float(shift.shift_d[0])


@pytest.mark.parametrize("places", [(0.0, 1.0), (0.0, 1.0, 5.0)])
def test_regions_meet_at_their_mean(places):
    for own in places:
        others = [each for each in places if each != own]
        assert own + value(moved(own, *others)) == pytest.approx(sum(places) / len(places), abs=1e-5)


def test_sizes_weigh():
    it = averaging()
    large, small = alike(it, 0.0, members=6), alike(it, 8.0, members=2)
    assert value(it.shift(large, [small], beside=1)) == pytest.approx(2.0, abs=1e-5)
    assert value(it.shift(small, [large], beside=1)) == pytest.approx(-6.0, abs=1e-5)


def test_a_claimed_size_counts_four_times_the_median_at_most():
    it = averaging(f=0)
    honest = [alike(it, 0.0, members=4) for _ in range(3)]
    liar = alike(it, 19.0, members=1 << 20)
    assert value(it.shift(honest[0], [*honest[1:], liar], beside=3)) == pytest.approx(19 * 16 / 28, abs=1e-4)


def test_a_region_that_has_just_begun_goes_to_the_others_and_hardly_moves_them():
    it = averaging()
    old, new = alike(it, 10.0, members=7, round=800), alike(it, 0.0, members=1, round=8)
    assert value(it.shift(new, [old], beside=1)) > 9.5
    assert value(it.shift(old, [new], beside=1)) > -0.5


def test_a_region_that_says_to_be_far_ahead_weighs_no_more_than_it_did():
    it = averaging()
    honest = [alike(it, float(each)) for each in range(3)]
    for ahead in (16, 2**50):
        liar = alike(it, 50.0, round=ahead)
        assert value(it.shift(honest[0], [*honest[1:], liar], beside=3)) == pytest.approx(1.5, abs=1e-4)
    two = it.shift(honest[0], [alike(it, 1.0, round=2**50)], beside=1)
    assert value(two) <= 0.75, "of two regions it has three quarters at most"


def test_of_four_regions_one_that_lies_is_left_out():
    for lie in (1e6, -1e6):
        assert abs(value(moved(0.0, 1.0, 2.0, lie))) <= 2.0
    assert moved(0.0, 1.0, 2.0, 3.0).lying == 1
    assert moved(0.0, 1.0, 2.0).lying == 0


def test_with_one_of_four_regions_lost_a_liar_is_still_left_out_and_with_two_nothing_moves():
    assert abs(value(moved(0.0, 1.0, 1e6, beside=3))) <= 1.0
    assert moved(0.0, 1e6, beside=3).shift_d is None


def test_who_promises_no_liars_averages_with_any_number():
    assert value(moved(0.0, 3.0, beside=3, f=0)) == pytest.approx(1.5, abs=1e-5)


@given(st.lists(st.floats(-10, 10, width=32), min_size=3, max_size=3), st.floats(-(2.0**30), 2.0**30, width=32))
def test_a_lying_publisher_does_not_take_a_region_beyond_the_honest_ones(honest, lie):
    it = averaging()
    own = alike(it, 0.0)
    other = region(it, *(GENESIS + each for each in honest), GENESIS + lie)
    least, most = min(0.0, min(honest) / 2), max(0.0, max(honest) / 2)
    assert least - 1e-3 <= value(it.shift(own, [other], beside=1)) <= most + 1e-3


@pytest.mark.parametrize(
    "bad",
    [Message("none", b"short"), Message("q2", bytes(64)), Message("none", np.full(NUMEL, np.nan, "<f4").tobytes())],
)
def test_what_cannot_be_read_is_named_and_the_others_count(bad):
    it = averaging()
    own, other = alike(it, 0.0), alike(it, 2.0)
    spoilt = RegionModels(models=[*other.models[:3], bad], needed=3, members=4, round=8)
    shift = it.shift(own, [spoilt], beside=1)
    assert value(shift) == pytest.approx(1.0, abs=1e-5)
    assert [list(whys) for whys in shift.refused] == [[], [3]]
    spoilt = RegionModels(models=[*other.models[:2], bad, bad], needed=3, members=4, round=8)
    assert it.shift(own, [spoilt], beside=1).shift_d is None


def test_eight_bits_are_enough_for_a_thousandth():
    it = RegionalAveraging(SyncConfig(), GENESIS)
    model_d = GENESIS + torch.sin(torch.arange(NUMEL) * 1.7)
    own = RegionModels(models=[it.encode(GENESIS)], needed=1, members=1)
    other = RegionModels(models=[it.encode(model_d)], needed=1, members=1)
    shift_d = it.shift(own, [other], beside=1).shift_d
    assert shift_d is not None
    assert (2 * shift_d - (model_d - GENESIS)).norm() < 0.01 * (model_d - GENESIS).norm()


def test_regions_move_after_the_last_round_and_publish_a_few_before():
    it = averaging(region_every=8)
    moves = [round_ for round_ in range(20) if it.moves_after(round_, 20)]
    publishes = [round_ for round_ in range(20) if it.publishes_after(round_, 20)]
    assert moves == [7, 15, 19]
    assert publishes == [5, 13, 17]
    others = [round_ for round_ in range(20) if it.moves_after(round_, 1000)]
    assert others == [7, 15], "who thinks that there are more rounds moves with the others"


@pytest.mark.parametrize("every", [2, 3, 4])
def test_a_model_is_always_published_before_it_is_moved_by(every):
    it = averaging(region_every=every)
    assert it.publishes_after(30 - 1 - it.lag, 30)
    assert not it.publishes_after(29, 30)


def test_a_model_that_is_not_finite_is_not_published():
    with pytest.raises(ValueError, match="not finite"):
        averaging().encode(torch.full((NUMEL,), torch.inf))


def test_settings_that_cannot_be_meant():
    for settings in ({"region_every": 1}, {"region_compressor": "nothing"}):
        with pytest.raises(ValueError, match=r"region_every|nothing"):
            SyncConfig(**settings)


@pytest.mark.parametrize("codec", ["q2", "sign1", "topk", "adaptive", "lossless+adaptive", "rotated+q2"])
def test_a_codec_that_loses_too_much_of_a_whole_model_is_refused(codec):
    with pytest.raises(ValueError, match="take int8, or int4"):
        SyncConfig(regions=("east", "west"), region_compressor=codec)
    assert SyncConfig(region_compressor=codec).region_compressor == codec, "in a flat swarm it says nothing"


@pytest.mark.parametrize("codec", ["int8", "int4", "bf16", "none", "rotated+int4", "lossless+int8"])
def test_a_codec_that_keeps_a_model_is_taken(codec):
    config = SyncConfig(regions=("east", "west"), region_compressor=codec)
    sent = RegionalAveraging(config, GENESIS).encode(GENESIS + torch.linspace(-1, 1, NUMEL))
    assert sent.codec == codec


def test_another_codec_than_the_runs_is_not_read():
    coarse = RegionalAveraging(SyncConfig(region_compressor="q2"), GENESIS).encode(GENESIS + 1.0)
    it = averaging()
    other = RegionModels(models=[coarse], needed=1, members=4, round=8)
    shift = it.shift(alike(it, 0.0), [other], beside=1)
    assert shift.shift_d is None
    assert "where regions use none" in shift.refused[1][0]


def opened(*others: float, beside: int, **settings: object) -> RegionalShift:
    it = averaging(**settings)
    return it.opening([alike(it, each) for each in others], beside=beside)


def test_a_region_begins_at_the_mean_of_the_others():
    assert value(opened(3.0, beside=1)) == pytest.approx(3.0, abs=1e-5)
    assert value(opened(3.0, 5.0, beside=2)) == pytest.approx(4.0, abs=1e-5)
    it = averaging()
    large, small = alike(it, 8.0, members=6), alike(it, 0.0, members=2)
    assert value(it.opening([large, small], beside=2)) == pytest.approx(6.0, abs=1e-5)


def test_where_one_region_may_lie_a_region_begins_between_the_others_and_at_no_fewer_than_three():
    assert value(opened(3.0, 4.0, 1000.0, beside=3)) == pytest.approx(4.0, abs=1e-5)
    it = averaging()
    huge = alike(it, 1000.0, members=10**6)
    assert value(it.opening([alike(it, 3.0), alike(it, 4.0), huge], beside=3)) == pytest.approx(4.0, abs=1e-5)
    few = opened(3.0, 4.0, beside=3)
    assert (few.shift_d, few.regions, averaging().fewest_to_open(3)) == (None, 2, 3)
    assert value(opened(3.0, beside=3, f=0)) == pytest.approx(3.0, abs=1e-5)


def test_a_region_does_not_begin_at_what_cannot_be_read():
    it = averaging()
    broken = region(it, *[GENESIS + 1.0] * 4)
    broken.models[:] = [Message("q2", message.payload) for message in broken.models]
    shift = it.opening([broken], beside=1)
    assert shift.shift_d is None
    assert list(shift.refused[0]) == [0, 1, 2, 3]


APART: dict[str, int] = {"round": 200}
MEDOID = {"region_rejoin": "medoid"}


def test_regions_that_have_grown_apart_take_their_mean_where_nothing_else_is_set():
    it = averaging(f=0)
    east, west = alike(it, 0.0, name="east", **APART), alike(it, 8.0, name="west", **APART)
    assert met(it, east, west) == pytest.approx(4.0, abs=1e-5)


def met(it: RegionalAveraging, own: RegionModels, *others: RegionModels) -> float:
    return value(it.shift(own, others, beside=len(others), apart=True))


def test_two_regions_that_have_grown_apart_take_the_model_of_one_and_not_their_mean():
    it = averaging(f=0, **MEDOID)
    east, west = alike(it, 0.0, name="east", **APART), alike(it, 8.0, name="west", **APART)
    assert met(it, east, west) == 0.0
    assert met(it, west, east) == pytest.approx(-8.0, abs=1e-5)


def test_of_two_that_have_grown_apart_the_larger_keeps_its_model():
    it = averaging(f=0, **MEDOID)
    east, west = alike(it, 0.0, name="east", members=3, **APART), alike(it, 8.0, name="west", members=5, **APART)
    assert met(it, east, west) == pytest.approx(8.0, abs=1e-5)
    assert met(it, west, east) == 0.0


def test_who_is_behind_takes_the_others_model_however_large_it_is():
    it = averaging(f=0, **MEDOID)
    old, new = alike(it, 0.0, name="old", members=9, round=0), alike(it, 8.0, name="new", members=4, round=64)
    assert met(it, old, new) == pytest.approx(8.0, abs=1e-5)
    assert met(it, new, old) == 0.0


@given(
    near=st.lists(st.floats(-0.5, 0.5, width=32), min_size=3, max_size=5),
    far=st.lists(st.floats(9.0, 10.0, width=32), min_size=1, max_size=2),
    random=st.randoms(use_true_random=False),
)
def test_all_that_have_grown_apart_meet_where_most_of_them_are(near, far, random):
    it = averaging(f=0, **MEDOID)
    regions = [(place, alike(it, place, name=f"r{at}", **APART)) for at, place in enumerate([*near, *far])]
    ends = []
    for place, own in regions:
        others = [region for _, region in regions if region is not own]
        random.shuffle(others)
        ends.append(place + met(it, own, *others))
    assert min(near) - 1e-3 <= ends[0] <= max(near) + 1e-3
    assert ends == pytest.approx([ends[0]] * len(ends), abs=1e-3)


@given(lie=st.floats(-1e6, 1e6, width=32), members=st.integers(1, 10**6), ahead=st.integers(-200, 2**40))
def test_of_four_that_have_grown_apart_one_that_lies_moves_the_others_within_what_they_are(lie, members, ahead):
    it = averaging(**MEDOID)
    honest = [alike(it, place, name=name, **APART) for place, name in ((0.0, "a"), (1.0, "b"), (2.0, "c"))]
    liar = alike(it, lie, name="0", members=members, round=200 + ahead)
    for place, own in zip((0.0, 1.0, 2.0), honest, strict=True):
        others = [region for region in honest if region is not own]
        end = place + met(it, own, liar, *others)
        assert -1.0 <= end <= 3.0


def test_liars_do_not_draw_the_medoid_towards_them():
    honest = [torch.full((4,), place) for place in (0.0, 1.0, 2.0, 3.0, 4.0)]
    assert around_medoid([*honest, *[torch.full((4,), 6.0)] * 2], 2) == [2]


def test_one_that_lies_near_the_medoid_is_trimmed():
    it = averaging(**MEDOID)
    places = {"a": 0.0, "b": 0.25, "c": 10.0, "liar": -3.0}
    honest, *others = (alike(it, place, name=name, **APART) for name, place in places.items())
    assert 0.0 - 1e-2 <= met(it, honest, *others) <= 0.25 + 1e-2


def test_a_liar_that_is_far_away_does_not_make_all_others_near():
    honest = [torch.full((4,), place) for place in (0.0, 0.1, 10.0, 10.1)]
    assert around_medoid([*honest, torch.full((4,), 1000.0)], 1) in ([0, 1], [2, 3])
    assert around_medoid(honest, 0) == [0, 1]


def test_a_far_round_that_one_lies_does_not_make_it_the_only_one_that_counts():
    it = averaging(**MEDOID)
    behind = [alike(it, place, name=name, round=100) for name, place in (("a", 0.0), ("b", 1.0))]
    ahead = alike(it, 9.0, name="c", round=200)
    liar = alike(it, 1e6, name="0", members=10**6, round=2**40)
    assert 9.0 + met(it, ahead, liar, *behind) <= 9.0


KEEPS_NO_SHIFT = {"sparse_loco"}
BY_UPDATES = [
    name
    for name in SYNC_STRATEGIES.names()
    if SYNC_STRATEGIES.get(name).averager == GOSSIP and SYNC_STRATEGIES.get(name).models is not None
]


@pytest.mark.parametrize("strategy", BY_UPDATES)
def test_a_move_towards_other_regions_outlives_the_next_rounds(strategy):
    """It is in no message yet when the next round closes."""
    if strategy in KEEPS_NO_SHIFT:
        with pytest.raises(ValueError, match="take back each move towards other regions"):
            SyncConfig(strategy=strategy, regions=("a", "b"))
        return
    config, names = SyncConfig(strategy=strategy, regions=("a", "b")), ("one", "other", "third")
    members = {own: build(config, GENESIS.clone(), own, rounds=100) for own in names}
    for own, member in members.items():
        assert isinstance(member, ModelAveraging)
        for peer in set(names) - {own}:
            member.track(peer, None)
    thetas = dict.fromkeys(names, GENESIS)
    for round_ in range(6):
        told = {own: members[own].encode(thetas[own], round=round_) for own in names}
        for own in names:
            for peer in set(names) - {own}:
                members[own].apply(peer, told[peer].codec, told[peer].payload)
            peers = dict.fromkeys(set(names) - {own}, 0)
            result = members[own].aggregate(thetas[own], peers, round=round_)
            if round_ == 1:
                result = members[own].move_(result, torch.full((NUMEL,), 0.5))
            thetas[own] = thetas[own] + result.correction_d
    for theta_d in thetas.values():
        torch.testing.assert_close(theta_d, GENESIS + 0.5, atol=0.02, rtol=0)
