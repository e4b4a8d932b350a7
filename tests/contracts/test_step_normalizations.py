"""What every step normalization must hold: no difference becomes shorter, nor longer than a whole round."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2ptrain import step_normalization
from p2ptrain.registry import BadOptionError
from p2ptrain.step_normalization import StepNormalization
from p2ptrain.training import TrainConfig

every_normalization = pytest.mark.parametrize("name", step_normalization.names())
works = st.floats(0, 1e12) | st.integers(0, 600).map(float)
schedules = st.integers(1, 500)


@every_normalization
@given(work=works, scheduled=schedules)
def test_a_difference_is_never_shortened_nor_made_longer_than_a_whole_round(
    name: str, work: float, scheduled: int
) -> None:
    factor = step_normalization.get(name).factor(work, scheduled)
    assert isinstance(factor, float)
    assert 1 <= factor < math.inf
    assert factor * work <= max(work, scheduled) * (1 + 1e-9)


@every_normalization
@given(work=works, more=works, scheduled=schedules)
def test_who_did_more_is_not_lengthened_more(name: str, work: float, more: float, scheduled: int) -> None:
    normalization = step_normalization.get(name)
    if work > 0:
        assert normalization.factor(work + more, scheduled) <= normalization.factor(work, scheduled)


@every_normalization
@given(scheduled=schedules)
def test_a_whole_round_and_one_without_work_stay_as_they_are(name: str, scheduled: int) -> None:
    normalization = step_normalization.get(name)
    assert normalization.factor(float(scheduled), scheduled) == 1
    assert normalization.factor(0.0, scheduled) == 1


@every_normalization
def test_it_has_its_name_and_takes_no_other_option(name: str) -> None:
    normalization = step_normalization.get(name)
    assert isinstance(normalization, StepNormalization)
    assert normalization.name == name
    assert TrainConfig(step_normalization=name).normalization().name == name
    with pytest.raises(BadOptionError):
        step_normalization.get(name, no_such_option=1)


def test_fednova_divides_by_the_steps_done_and_multiplies_by_those_scheduled() -> None:
    config = TrainConfig(step_normalization="fednova")
    assert [config.normalization().factor(work, 20) for work in (20, 10, 4, 2)] == [1, 2, 5, 10]
    assert config.normalization().factor(1, 20) == 16, "the most"
    rooted = TrainConfig(step_normalization="fednova", normalization_exponent=0.5, most_lengthening=4)
    assert [rooted.normalization().factor(work, 16) for work in (16, 9, 4, 1)] == pytest.approx([1, 4 / 3, 2, 2])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"normalization_exponent": 0.0}, "exponent of fednova must be above 0"),
        ({"normalization_exponent": 1.5}, "at most 1, not 1.5"),
        ({"normalization_exponent": math.nan}, "not nan"),
        ({"most_lengthening": 0.5}, "at least 1 and at most 16, not 0.5"),
        ({"most_lengthening": math.inf}, "not inf"),
    ],
)
def test_options_that_cannot_be_are_refused(options: dict[str, float], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        TrainConfig(step_normalization="fednova", **options)  # type: ignore[arg-type]
