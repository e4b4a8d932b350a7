"""What a user may set, and the learning rate over a run."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from p2ptrain.training import TrainConfig, lr_at


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("rounds", 0),
        ("inner_steps", -1),
        ("batch_size", 0),
        ("grad_accumulation", 0),
        ("learning_rate", -1e-3),
        ("learning_rate", float("nan")),
        ("final_lr_fraction", 1.5),
        ("warmup_steps", -1),
        ("weight_decay", float("inf")),
        ("betas", (0.9, 1.0)),
        ("epsilon", 0.0),
        ("clip_norm", -1),
        ("seed", -1),
        ("threads", -1),
        ("eval_every", 0),
        ("schedule", "linear"),
        ("precision", "fp8"),
        ("optimizer", "lion"),
        ("drift", "feddyn"),
    ],
)
def test_a_value_that_cannot_be_is_named(field, value):
    with pytest.raises(ValueError, match=field):
        TrainConfig(**{field: value})


def test_pydantic_reads_it_and_forbids_the_rest():
    adapter = TypeAdapter(TrainConfig)
    assert adapter.validate_python({"betas": [0.8, 0.9]}).betas == (0.8, 0.9)
    with pytest.raises(ValidationError, match="learning_rat"):
        adapter.validate_python({"learning_rat": 1})


def test_options_go_to_the_member_that_is_chosen_and_to_no_other():
    assert TrainConfig(optimizer="sgd", momentum=0.5, nesterov=True).optimizer_options() == {
        "momentum": 0.5,
        "nesterov": True,
    }
    assert TrainConfig(drift="fedprox", drift_strength=0.1).drift_options() == {"strength": 0.1}
    assert TrainConfig().optimizer_options() == TrainConfig().drift_options() == {}
    for changes, said in (
        ({"momentum": 0.9}, "adamw.*momentum.*weight_decay, betas, epsilon"),
        ({"optimizer": "sgd", "betas": (0.9, 0.95)}, "sgd.*betas"),
        ({"optimizer": "sgd", "momentum": 2.0}, "sgd: momentum"),
        ({"drift_strength": 0.1}, "none.*strength"),
        ({"drift": "scaffold", "drift_strength": 2.0}, "scaffold: strength"),
    ):
        with pytest.raises(ValueError, match=said):
            TrainConfig(**changes)


def test_the_rate_rises_falls_and_stays():
    config = TrainConfig(learning_rate=1.0, warmup_steps=10, final_lr_fraction=0.1)
    rates = {step: lr_at(step, 110, config) for step in (0, 4, 9, 10, 60, 110, 500)}
    assert rates == pytest.approx({0: 0.1, 4: 0.5, 9: 1.0, 10: 1.0, 60: 0.55, 110: 0.1, 500: 0.1})


def test_a_constant_rate_is_one_after_the_warm_up():
    config = TrainConfig(learning_rate=2.0, warmup_steps=2, schedule="constant")
    assert [lr_at(step, 4, config) for step in range(5)] == [1.0, 2.0, 2.0, 2.0, 2.0]


@given(st.integers(0, 5000), st.integers(1, 2000), st.integers(0, 3000))
def test_the_rate_is_never_outside_its_bounds(step, total, warmup):
    config = TrainConfig(learning_rate=1.0, warmup_steps=warmup)
    assert 0 < lr_at(step, total, config) <= 1.0


@pytest.mark.parametrize(("schedule", "share"), [("constant", None), ("post_local", 0.5), ("qsr", None)])
def test_a_step_finds_how_many_its_round_has(schedule, share):
    config = TrainConfig(rounds=7, inner_steps=5, inner_steps_schedule=schedule, synchronous_share=share)
    found = [config.steps_around(step) for step in range(config.total_steps)]
    assert found == [config.steps_in(round_) for round_ in range(7) for _ in range(config.steps_in(round_))]
    assert config.steps_around(config.total_steps) == config.steps_around(10**9) == 5
