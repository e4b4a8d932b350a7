"""The mean of late weights: which rounds are in it, what begins it anew, and that it goes on from its state."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from p2ptrain.training import TrainConfig
from p2ptrain.training.late_average import LateAverage

D = 3


def weights(round: int) -> torch.Tensor:
    return torch.full((D,), float(round))


def after(share: float, rounds: int, *, run: range | None = None) -> LateAverage:
    late = LateAverage(share)
    for round in run or range(1, rounds + 1):
        late.add(weights(round), round=round, rounds=rounds)
    return late


def mean_of(late: LateAverage) -> float:
    assert late.mean_d is not None
    return float(late.mean_d.mean())


@given(st.integers(1, 60), st.integers(1, 20))
def test_it_is_the_mean_of_the_last_rounds(rounds: int, twentieths: int) -> None:
    window = -(-rounds * twentieths // 20)
    expected = sum(range(rounds - window + 1, rounds + 1)) / window
    late = after(twentieths / 20, rounds)
    assert mean_of(late) == pytest.approx(expected, rel=1e-5)
    assert [late.covers(round, rounds) for round in range(1, rounds + 1)].count(True) == window


def test_without_a_share_nothing_is_kept() -> None:
    late = after(0.0, 10)
    assert late.mean_d is None
    assert late.state_dict() == {}
    assert not late.covers(10, 10)


def test_before_the_window_there_is_none() -> None:
    assert after(0.3, 10, run=range(1, 8)).mean_d is None
    assert mean_of(after(0.3, 10, run=range(1, 9))) == 8


def test_the_weights_are_not_taken_nor_changed() -> None:
    late, phi_d = LateAverage(1.0), weights(1)
    late.add(phi_d, round=1, rounds=2)
    held = late.state_dict()["mean"]
    phi_d.fill_(9)
    late.add(weights(3), round=2, rounds=2)
    assert float(held.mean()) == 1, "a state that was given away stays what it was"
    assert mean_of(late) == 2


def test_a_model_adopted_in_the_middle_begins_it_anew() -> None:
    late = after(0.5, 10, run=range(1, 8))
    late.add(weights(9), round=9, rounds=10)
    assert mean_of(late) == 9
    late.add(weights(10), round=10, rounds=10)
    assert mean_of(late) == 9.5


def test_more_rounds_leave_out_those_before_the_new_window() -> None:
    late = after(0.5, 4)
    assert mean_of(late) == 3.5
    late.add(weights(5), round=5, rounds=8)  # covers 5 to 8
    assert mean_of(late) == 5
    late = after(0.5, 4)
    late.add(weights(5), round=5, rounds=20)
    assert late.mean_d is None, "what was the end is none"


def test_weights_that_are_not_finite_are_seen() -> None:
    late = after(1.0, 10, run=range(1, 4))
    late.add(torch.tensor([1.0, float("nan"), 1.0]), round=4, rounds=10)
    assert late.mean_d is None, "so that the model itself is evaluated, and found unusable"
    late.add(weights(5), round=5, rounds=10)
    assert mean_of(late) == 5


def test_it_goes_on_from_its_state_bit_for_bit() -> None:
    generator = torch.Generator().manual_seed(0)
    vectors = [torch.randn(D, generator=generator) for _ in range(9)]
    whole, first, resumed = LateAverage(0.8), LateAverage(0.8), LateAverage(0.8)
    for round, phi_d in enumerate(vectors, start=1):
        whole.add(phi_d, round=round, rounds=9)
        (first if round < 6 else resumed).add(phi_d, round=round, rounds=9)
        if round == 5:
            resumed.load_state_dict({name: value.clone() for name, value in first.state_dict().items()}, D)
    assert whole.mean_d is not None
    assert resumed.mean_d is not None
    assert torch.equal(whole.mean_d, resumed.mean_d)
    assert torch.equal(whole.state_dict()["rounds"], resumed.state_dict()["rounds"])


def test_a_state_without_it_is_taken_and_one_that_is_not_wanted_left() -> None:
    late = LateAverage(0.5)
    late.load_state_dict({}, D)
    assert late.mean_d is None
    off = LateAverage(0.0)
    off.load_state_dict(after(0.5, 4).state_dict(), D)
    assert off.mean_d is None


@pytest.mark.parametrize(
    "changes",
    [
        {"mean": torch.zeros(D + 1)},
        {"mean": torch.zeros(D, dtype=torch.float64)},
        {"mean": torch.full((D,), float("inf"))},
        {"rounds": torch.zeros(2, dtype=torch.int64)},
        {"rounds": torch.tensor([4, 3])},
        {"rounds": torch.ones(2)},
        {"rounds": torch.ones(3, dtype=torch.int64)},
        {"mean": None},
        {"rounds": None},
    ],
)
def test_the_state_of_another_model_is_refused(changes: dict[str, torch.Tensor | None]) -> None:
    state = {name: value for name, value in {**after(0.5, 4).state_dict(), **changes}.items() if value is not None}
    late = LateAverage(0.5)
    with pytest.raises(ValueError, match="average of late weights"):
        late.load_state_dict(state, D)
    assert late.mean_d is None


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan")])
def test_a_share_that_cannot_be_is_refused(share: float) -> None:
    with pytest.raises(ValueError, match="late_average"):
        TrainConfig(late_average=share)


def test_schedule_free_has_an_average_of_its_own() -> None:
    with pytest.raises(ValueError, match="late_average: schedule_free's model is an average"):
        TrainConfig(late_average=0.2, optimizer="schedule_free")
