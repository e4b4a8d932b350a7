"""Some hours of volunteers who are there at some times of the day, and say so when they are not."""

import pytest
from diurnal_swarm import day_of


@pytest.mark.thorough
def test_volunteers_who_come_and_go_use_the_time_in_which_they_are_there() -> None:
    day = day_of(6, hours=8.0)
    assert day.utilization >= 0.95
    assert day.often >= 15
    assert day.joined <= day.lost <= day.joined + 1, "a step before each model that it took, and the one under way"
