"""The search for a learning rate: where it ends, how many runs it takes, what a longer run makes of it."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2ptrain import tasks
from p2ptrain.training import TrainConfig
from p2ptrain.training.rate_search import (
    COARSE,
    FINE,
    FIRST_RATE,
    HORIZON,
    LEAST_RATE,
    FoundRate,
    Trial,
    run_trial,
    search,
    trial_config,
)


def found(loss_at, *, trial_steps=100, total_steps=100):
    return FoundRate(trials=tuple(search(loss_at)), trial_steps=trial_steps, total_steps=total_steps)


def valley(best):
    """Least at `best`, alike to both sides in the logarithm, and not flat."""
    return lambda rate: 0.1 + abs(math.log(rate / best))


@given(st.floats(-4.0, 4.0))
def test_it_ends_within_a_factor_of_the_best_rate_after_few_runs(octaves):
    best = FIRST_RATE * 2**octaves
    told = found(valley(best))
    assert abs(math.log(told.best.rate / best)) <= math.log(FINE) / 2 + 1e-9
    assert len(told.trials) <= 7
    assert len({trial.rate for trial in told.trials}) == len(told.trials), "no rate twice"


@given(st.floats(-4.0, 4.0), st.floats(0.1, 2.0))
def test_rates_that_diverge_are_left_behind(octaves, octaves_above):
    """Above some rate nothing is finite, the first one perhaps among them."""
    best = FIRST_RATE * 2**octaves
    limit = best * 2**octaves_above
    told = found(lambda rate: valley(best)(rate) if rate <= limit else math.nan)
    assert told.best.loss < math.inf
    assert abs(math.log(told.best.rate / best)) <= math.log(FINE) + 1e-9


def test_of_rates_that_are_as_good_the_lowest_is_taken():
    trials = tuple(
        Trial(rate=rate, loss=loss) for rate, loss in [(3e-3, 2.2), (1.2e-2, 2.015), (4.8e-2, 2.0), (9.6e-2, 3.0)]
    )
    assert FoundRate(trials=trials, trial_steps=100, total_steps=100).best == trials[1]
    lower = (*trials, Trial(rate=6e-3, loss=2.021))
    assert FoundRate(trials=lower, trial_steps=100, total_steps=100).best == trials[1], "that is not as good"


def test_a_model_that_no_rate_trains_is_told_apart():
    told = found(lambda rate: math.inf)
    assert told.best.loss == math.inf
    assert min(trial.rate for trial in told.trials) < COARSE * LEAST_RATE, "all of them were tried"


def test_a_model_that_learns_nothing_ends_the_search():
    assert len(found(lambda rate: 1.0).trials) < 16


@pytest.mark.parametrize(
    ("total", "factor"), [(50, 1.0), (100, 1.0), (500, 1.0), (1000, 2**-HORIZON), (100_000, 200**-HORIZON)]
)
def test_a_much_longer_run_has_a_lower_rate(total, factor):
    told = FoundRate(trials=(Trial(rate=0.01, loss=1.0),), trial_steps=100, total_steps=total)
    assert told.rate == pytest.approx(0.01 * factor, rel=0.05)
    assert told.rate == float(f"{told.rate:.2g}")


def test_a_trial_is_a_whole_run_of_its_own():
    train = trial_config(TrainConfig(rounds=60, inner_steps=20, warmup_steps=40, batch_size=3), 0.5, 100)
    assert (train.total_steps, train.learning_rate, train.warmup_steps, train.batch_size) == (100, 0.5, 20, 3)
    assert trial_config(TrainConfig(warmup_steps=0), 0.5, 100).warmup_steps == 0


@pytest.mark.parametrize("options", [{"least_inner_steps": 5}, {}])
def test_a_trial_has_no_rounds_to_spread_its_steps_over(options):
    train = trial_config(TrainConfig(inner_steps_schedule="qsr", **options), 0.5, 100)
    assert train.inner_steps_schedule == "constant"
    assert train.steps_in(99) == 1


def test_a_trial_of_a_run_with_local_steps_moves_all_parameters_in_every_step():
    train = trial_config(TrainConfig(inner_steps=20, local=("6.*",), local_steps=10), 0.5, 100)
    assert (train.local, train.local_steps) == (("6.*",), 0)


def test_the_same_trial_twice_is_the_same_and_rates_differ():
    task, train = tasks.get("digits"), TrainConfig(batch_size=8, warmup_steps=2, eval_examples=64, threads=1)
    low, again, high = (run_trial(task, train, rate, 15) for rate in (1e-4, 1e-4, 1e-2))
    assert low == again
    assert high < low - 0.1, "a hundred times the rate learns more in fifteen steps"


def test_a_loss_below_all_numbers_is_no_best_one():
    told = list(search(lambda rate: -math.inf if rate > FIRST_RATE else valley(FIRST_RATE)(rate)))
    assert FoundRate(trials=tuple(told), trial_steps=10, total_steps=10).best.loss > -math.inf
