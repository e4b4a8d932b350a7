"""Some hours of volunteers who are there at some times of the day, and say so when they are not."""

import pytest
from diurnal_swarm import INNER_STEPS, day_of

pytestmark = pytest.mark.thorough

NODES, HOURS = 6, 8.0


def test_volunteers_who_come_and_go_use_the_time_in_which_they_are_there() -> None:
    day = day_of(NODES, hours=HOURS)
    assert day.utilization >= 0.95
    assert day.often >= 15
    assert day.often_lost == day.often_joined, "a step before each model that it took"
    assert day.lost <= INNER_STEPS * day.joined, "of the others the open round at most, before each model"
    assert day.waited_announced_s == 0


def test_who_does_not_say_that_it_pauses_is_waited_for() -> None:
    """So what is measured above can be seen."""
    day = day_of(NODES, hours=HOURS, silent=1.0)
    assert day.waited_absent_s > 0
