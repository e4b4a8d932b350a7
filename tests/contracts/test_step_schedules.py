"""What every step schedule must hold: as many rounds and steps as without one, in whole numbers, the same each time."""

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2ptrain import step_schedules
from p2ptrain.registry import BadOptionError
from p2ptrain.step_schedules import StepSchedule
from p2ptrain.training import TrainConfig

every_schedule = pytest.mark.parametrize("name", step_schedules.names())

rates = st.lists(st.integers(1, 1 << 32), min_size=1, max_size=64).map(lambda found: sorted(found, reverse=True))


def stretched(falling: Sequence[int], steps: int) -> list[int]:
    """One rate for each step, by as many as there are."""
    return [falling[step * len(falling) // steps] for step in range(steps)]


@every_schedule
@given(rounds=st.integers(1, 60), inner_steps=st.integers(1, 40), falling=rates)
def test_rounds_and_steps_are_as_many_and_every_round_has_its_least(
    name: str, rounds: int, inner_steps: int, falling: list[int]
) -> None:
    schedule, steps = step_schedules.get(name), rounds * inner_steps
    starts = schedule.starts(rounds, inner_steps, lambda: stretched(falling, steps))
    assert len(starts) == rounds + 1
    assert (starts[0], starts[-1]) == (0, steps)
    assert all(type(start) is int for start in starts)
    assert all(later - sooner >= schedule.least_inner_steps for sooner, later in itertools.pairwise(starts))


@every_schedule
@given(rounds=st.integers(1, 60), inner_steps=st.integers(1, 40), falling=rates)
def test_members_that_never_met_find_the_same(name: str, rounds: int, inner_steps: int, falling: list[int]) -> None:
    def found() -> list[int]:
        return list(
            step_schedules.get(name).starts(rounds, inner_steps, lambda: stretched(falling, rounds * inner_steps))
        )

    assert found() == found()


@every_schedule
def test_one_step_a_round_is_what_it_is(name: str) -> None:
    starts = step_schedules.get(name).starts(7, 1, lambda: [5, 5, 4, 3, 2, 1, 1])
    assert list(starts) == list(range(8))


@every_schedule
@given(
    rounds=st.integers(1, 40),
    inner_steps=st.integers(1, 20),
    warmup_steps=st.integers(0, 1000),
    final_lr_fraction=st.floats(0, 1),
    schedule=st.sampled_from(["cosine", "constant"]),
)
def test_a_configs_rounds_follow_each_other_past_the_end_too(name: str, **settings: object) -> None:
    config = TrainConfig(inner_steps_schedule=name, **settings)  # type: ignore[arg-type]
    rounds, steps = config.rounds, config.total_steps
    assert config.first_step(0) == 0
    assert config.first_step(rounds) == steps
    assert sum(config.steps_in(round_) for round_ in range(rounds)) == steps
    assert [config.steps_in(round_) for round_ in (rounds, rounds + 5)] == [config.inner_steps] * 2
    assert config.first_step(rounds + 3) == steps + 3 * config.inner_steps


@every_schedule
def test_it_has_its_name_and_takes_no_other_option(name: str) -> None:
    schedule = step_schedules.get(name)
    assert isinstance(schedule, StepSchedule)
    assert schedule.name == name
    assert schedule.least_inner_steps >= 1
    with pytest.raises(BadOptionError):
        step_schedules.get(name, no_such_option=1)
