"""Steps a round: against every H tried one by one, and the published rule for unequal speeds."""

import math
from statistics import median_low

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2ptrain.training.pace import agreed, auto_h, dylu_steps, exchange_seconds, utilization

MAXIMUM = 60
ROUNDING = 1e-12
times = st.floats(1e-4, 1e3)
amounts = st.floats(0, 1e12)


def time_of_a_run(steps, step_seconds, exchange_s, overlap_steps, rounds):
    """A node's clock, step by step: it waits where the next step may not begin before the exchange is over."""
    now, done_at = 0.0, -math.inf
    for _ in range(rounds):
        for step in range(steps):
            tau = steps if overlap_steps is None else overlap_steps
            if step == tau:
                now = max(now, done_at)
            now += step_seconds
        now = max(now, done_at)  # one exchange at a time
        done_at = now + exchange_s
    return max(now, done_at) - exchange_s


@given(st.integers(1, 12), times, st.floats(0, 100), st.none() | st.integers(0, 15))
def test_utilization_is_that_of_a_clock(steps, step_seconds, in_steps, overlap_steps):
    exchange_s, rounds = in_steps * step_seconds, 60
    spent = time_of_a_run(steps, step_seconds, exchange_s, overlap_steps, rounds)
    computed = rounds * steps * step_seconds
    found = utilization(steps, step_seconds=step_seconds, exchange_s=exchange_s, overlap_steps=overlap_steps)
    waits = rounds - 1  # after the last round nothing is waited for
    expected = computed / (computed + (spent - computed) * rounds / waits)
    assert found == pytest.approx(expected, rel=1e-6)


@given(times, times, amounts, st.floats(0, 10), st.integers(0, 8), st.none() | st.integers(0, 70), st.floats(0.01, 1))
def test_it_is_the_smallest_that_reaches_what_is_wanted(step_s, link, payload, latency, copies, overlap, wanted):
    exchange_s = exchange_seconds(payload, link_bytes_per_s=link, copies=copies, latency_s=latency)
    reached = [
        utilization(steps, step_seconds=step_s, exchange_s=exchange_s, overlap_steps=overlap) >= wanted
        for steps in range(1, MAXIMUM + 1)
    ]
    expected = reached.index(True) + 1 if any(reached) else MAXIMUM
    found = auto_h(
        step_seconds=step_s,
        link_bytes_per_s=link,
        payload_bytes=payload,
        latency_s=latency,
        copies=copies,
        overlap_steps=overlap,
        wanted_utilization=wanted,
        maximum=MAXIMUM,
    )
    assert found == expected


def test_a_home_link_and_a_lan():
    """10 Mbit/s up, q2 (a sixteenth of fp32) of 25M parameters to four neighbours: 20 s of upload and its latency."""
    home = {"link_bytes_per_s": 1.25e6, "payload_bytes": 25e6 / 4, "copies": 4, "latency_s": 0.05}
    assert auto_h(step_seconds=0.5, wanted_utilization=1, **home) == 41
    assert auto_h(step_seconds=0.5, **home) == 39  # 95% of 20.05 s in steps of 0.5 s
    assert auto_h(step_seconds=0.5, overlap_steps=0, maximum=1000, **home) == 762  # computing takes 19 times as long
    assert auto_h(step_seconds=0.5, overlap_steps=10, wanted_utilization=1, **home) == 500  # out of reach: the most
    assert auto_h(step_seconds=0.5, link_bytes_per_s=125e6, payload_bytes=25e6 / 4) == 1


@given(st.integers(1, 1000), st.floats(1e-3, 1e3), st.floats(1e-3, 1e3))
def test_slower_nodes_do_fewer_steps(inner_steps, speed, fastest):
    found = dylu_steps(inner_steps, speed=speed, fastest=fastest)
    assert 1 <= found <= inner_steps
    share = min(1.0, speed / fastest)
    assert found == 1 or inner_steps * share - 1 < found * (1 + ROUNDING)
    assert found == 1 or found * (1 - ROUNDING) <= inner_steps * share
    assert dylu_steps(inner_steps, speed=fastest, fastest=fastest) == inner_steps


@given(st.integers(1, 1000), st.integers(1, 100), st.integers(1, 100))
def test_speeds_that_divide_evenly_lose_no_step(inner_steps, speed, fastest):
    expected = max(1, inner_steps * min(speed, fastest) // fastest)
    assert dylu_steps(inner_steps, speed=float(speed), fastest=float(fastest)) == expected


def test_rounds_take_equal_time():
    assert [dylu_steps(20, speed=speed, fastest=4.0) for speed in (4.0, 3.0, 2.0, 1.0, 0.01)] == [20, 15, 10, 5, 1]


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"step_seconds": 0}, "step_seconds"),
        ({"step_seconds": math.nan}, "step_seconds"),
        ({"link_bytes_per_s": 0}, "link_bytes_per_s"),
        ({"payload_bytes": -1}, "payload_bytes"),
        ({"latency_s": math.inf}, "latency_s"),
        ({"copies": -1}, "copies"),
        ({"overlap_steps": -1}, "overlap_steps"),
        ({"wanted_utilization": 0}, "wanted_utilization"),
        ({"maximum": 0}, "maximum"),
    ],
)
def test_a_measurement_that_cannot_be_is_named(changes, name):
    with pytest.raises(ValueError, match=name):
        auto_h(**({"step_seconds": 1, "link_bytes_per_s": 1, "payload_bytes": 1} | changes))


@pytest.mark.parametrize("changes", [{"speed": 0}, {"fastest": -1}, {"speed": math.inf}, {"inner_steps": 0}])
def test_a_speed_that_cannot_be_is_named(changes):
    with pytest.raises(ValueError, match=next(iter(changes))):
        dylu_steps(**({"inner_steps": 20, "speed": 1, "fastest": 1} | changes))


@given(st.integers(1, 1000), st.lists(st.integers(1, 1000), min_size=1, max_size=7))
def test_a_plan_changes_by_a_tenth_or_more_and_only_where_all_agree(current, wanted):
    found = agreed(current, wanted)
    above = all(9 * each >= 10 * current for each in wanted)
    below = all(10 * each <= 9 * current for each in wanted)
    assert found == (median_low(wanted) if above or below else current)
    assert agreed(found, wanted) == found, "one look is as good as two"


def test_plans_are_counts():
    for current, wanted in ((0, [1]), (1, [1, 0])):
        with pytest.raises(ValueError, match="at least 1"):
            agreed(current, wanted)
