"""How each schedule spreads the steps, and the whole numbers that stand for the learning rate."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2ptrain import step_schedules
from p2ptrain.step_schedules.qsr import FRACTION
from p2ptrain.training import TrainConfig, lr_at
from p2ptrain.training.relative_rates import UNIT, half_turn, relative_rates

cosines = st.fixed_dictionaries(
    {
        "rounds": st.integers(1, 60),
        "inner_steps": st.integers(1, 30),
        "warmup_steps": st.integers(0, 200),
        "final_lr_fraction": st.floats(0, 1),
    }
)


def lengths(**changes: object) -> list[int]:
    config = TrainConfig(**changes)  # type: ignore[arg-type]
    return [config.steps_in(round_) for round_ in range(config.rounds)]


def test_constant_rounds_cost_nothing_and_ask_for_no_rates():
    def never() -> list[int]:
        raise AssertionError

    assert step_schedules.get("constant").starts(1_000_000, 20, never) == range(0, 20_000_001, 20)
    assert lengths() == [20] * 60


@given(cosines)
@settings(max_examples=50)
def test_qsr_rounds_never_become_shorter_as_the_rate_falls(changes):
    found = lengths(inner_steps_schedule="qsr", **changes)
    assert found == sorted(found)


@given(cosines, st.integers(1, 5))
@settings(max_examples=50)
def test_qsr_keeps_its_least(changes, least):
    changes["inner_steps"] = max(least, changes["inner_steps"])
    found = lengths(inner_steps_schedule="qsr", least_inner_steps=least, **changes)
    assert min(found) >= least
    assert sum(found) == changes["rounds"] * changes["inner_steps"]


def test_qsr_is_the_inverse_square_of_the_rate_where_each_round_begins():
    config = TrainConfig(inner_steps_schedule="qsr", rounds=200, inner_steps=50)
    starts = [config.first_step(round_) for round_ in range(config.rounds)]
    rates = [lr_at(max(start, config.warmup_steps), config.total_steps, config) for start in starts]
    wanted = [config.steps_in(0) * (rates[0] / rate) ** 2 for rate in rates]
    assert wanted[-2] > 20 * wanted[0]
    for round_ in range(config.rounds - 1):  # the last has what the others left
        assert config.steps_in(round_) == pytest.approx(wanted[round_], rel=0.06), "c is between two whole numbers"


def test_qsr_with_a_constant_rate_is_constant():
    assert lengths(inner_steps_schedule="qsr", schedule="constant") == [20] * 60
    assert lengths(inner_steps_schedule="qsr", optimizer="schedule_free") == [20] * 60
    assert lengths(inner_steps_schedule="qsr", final_lr_fraction=1.0) == [20] * 60
    assert lengths(inner_steps_schedule="qsr", warmup_steps=5000) == [20] * 60


def test_the_peak_does_not_count_but_what_becomes_of_it():
    assert lengths(inner_steps_schedule="qsr", learning_rate=0.5) == lengths(inner_steps_schedule="qsr")
    assert lengths(inner_steps_schedule="qsr", final_lr_fraction=0.5) != lengths(inner_steps_schedule="qsr")


def test_qsr_has_these_rounds_on_every_platform():
    found = lengths(inner_steps_schedule="qsr", rounds=24, inner_steps=10)
    assert found == [5, 5, 5, 5, 5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 6, 7, 7, 8, 9, 10, 12, 16, 26, 62]


def test_post_local_has_single_steps_first():
    found = lengths(inner_steps_schedule="post_local")
    assert found == [1] * 30 + [39] * 30
    assert lengths(inner_steps_schedule="post_local", rounds=5, inner_steps=4) == [1, 1, 6, 6, 6]
    assert lengths(inner_steps_schedule="post_local", rounds=5, inner_steps=3) == [1, 1, 4, 4, 5]
    assert lengths(inner_steps_schedule="post_local", synchronous_share=0.0) == [20] * 60
    assert lengths(inner_steps_schedule="post_local", synchronous_share=0.99, rounds=3) == [1, 1, 58]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"inner_steps_schedule": "cubic"}, "unknown step_schedule 'cubic'; there are: constant, post_local, qsr"),
        ({"least_inner_steps": 2}, "constant.*takes no option .least_inner_steps"),
        ({"inner_steps_schedule": "post_local", "least_inner_steps": 2}, "post_local.*least_inner_steps"),
        ({"inner_steps_schedule": "qsr", "synchronous_share": 0.5}, "qsr.*synchronous_share"),
        ({"inner_steps_schedule": "qsr", "least_inner_steps": 0}, "least_inner_steps must be at least 1"),
        ({"inner_steps_schedule": "qsr", "least_inner_steps": 21}, "inner_steps must be at least 21, the fewest"),
        ({"inner_steps_schedule": "post_local", "synchronous_share": 1.0}, "synchronous_share must be"),
        ({"inner_steps_schedule": "post_local", "synchronous_share": -0.1}, "synchronous_share must be"),
        ({"inner_steps_schedule": "post_local", "synchronous_share": float("nan")}, "synchronous_share must be"),
    ],
)
def test_a_setting_that_cannot_be_is_named(changes, said):
    with pytest.raises(ValueError, match=said):
        TrainConfig(**changes)


@given(cosines)
@settings(max_examples=50)
def test_whole_rates_are_those_of_the_schedule_and_never_rise(changes):
    config = TrainConfig(learning_rate=1.0, **changes)
    total = config.total_steps
    found = relative_rates(total, warmup=config.warmup_steps, final_fraction=config.final_lr_fraction, decays=True)
    assert len(found) == total
    assert found == sorted(found, reverse=True)
    assert found[-1] >= 1
    for step, rate in enumerate(found):
        wanted = 1.0 if step < config.warmup_steps else lr_at(step, total, config)
        assert rate / UNIT == pytest.approx(wanted, abs=1e-9)


def test_cosines_of_a_long_run_are_still_exact():
    count = 100_000
    found = half_turn(count)
    assert all(abs(found[k] / 2**128 - math.cos(math.pi * k / count)) < 1e-15 for k in range(0, count, 997))
    assert half_turn(0) == []
    assert half_turn(1) == [1 << 128]
    assert FRACTION < 32
