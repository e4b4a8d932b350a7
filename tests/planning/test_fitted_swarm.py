"""What a calibration learns from rounds of real nodes, tried on simulated ones whose charges are known."""

from dataclasses import replace

import pytest
from test_calibrated import MACHINE

from node.planning.calibration import MachineCalibration, SwarmRounds, SwarmTiming
from node.planning.fitted_swarm import NEAR, fitted, simulated_rounds, step_and_round, unlike

ROUNDS = SwarmRounds(
    members=3, inner_steps=20, rounds=40, steps=20.0, round_s=0.2, round_sigma=0.2, exchange_s=0.1, work_s=0.01
)


def machine(*, step_s: float, crowding: float, transfer_s: float, wake_s: float) -> MachineCalibration:
    """One with these charges: the truth."""
    timing = SwarmTiming(rounds=ROUNDS, step_s=step_s, round_sigma=0.2, crowding=crowding, wake_s=wake_s)
    return replace(MACHINE, rates=replace(MACHINE.rates, seconds_a_transfer=transfer_s), swarm=timing)


def rounds_of(truth: MachineCalibration, inner_steps: int) -> SwarmRounds:
    assert truth.swarm is not None
    return simulated_rounds(
        replace(truth, swarm=replace(truth.swarm, rounds=replace(truth.swarm.rounds, inner_steps=inner_steps)))
    )


@pytest.mark.thorough
@pytest.mark.parametrize(
    "truth",
    [
        pytest.param(machine(step_s=0.002, crowding=5.0, transfer_s=0.004, wake_s=0.003), id="exchange outlasts steps"),
        pytest.param(machine(step_s=0.03, crowding=2.0, transfer_s=0.004, wake_s=0.001), id="steps outlast exchange"),
    ],
)
def test_rounds_of_another_length_are_foretold(truth):
    first, second = rounds_of(truth, 20), rounds_of(truth, 60)
    found = fitted(replace(truth, swarm=None, rates=replace(truth.rates, seconds_a_transfer=0.001)), first, second)
    assert found.off == unlike(found.simulated, first) <= 2 * NEAR
    found = found.calibration
    foretold, real = rounds_of(found, 35), rounds_of(truth, 35)
    assert foretold.round_s == pytest.approx(real.round_s, rel=0.05)
    assert foretold.steps == pytest.approx(real.steps, rel=0.05)


def test_a_line_through_two_kinds_of_rounds_is_a_step_and_a_round():
    long = replace(ROUNDS, steps=60.0, round_s=0.4)
    step_s, lost_s = step_and_round(ROUNDS, long)
    assert (step_s, lost_s) == (pytest.approx(0.005), pytest.approx(0.1))


@pytest.mark.parametrize("round_s", [0.1, 0.2, 0.9])
def test_noise_that_makes_steps_or_rounds_free_is_left_out(round_s):
    step_s, lost_s = step_and_round(ROUNDS, replace(ROUNDS, steps=60.0, round_s=round_s))
    assert (step_s, lost_s) == (0.01, 0.0)


@pytest.mark.parametrize("steps", [20.0, 22.0])
def test_rounds_of_about_as_many_steps_say_nothing_of_a_round(steps):
    assert step_and_round(ROUNDS, replace(ROUNDS, steps=steps, round_s=0.21)) == (0.01, 0.0)


def test_two_swarms_count_alike():
    both = ROUNDS.with_another(replace(ROUNDS, round_s=0.4, steps=40.0, exchange_s=0.3, work_s=0.03, rounds=7))
    assert (both.round_s, both.steps, both.exchange_s, both.work_s) == pytest.approx((0.3, 30.0, 0.2, 0.02))
    assert (both.rounds, both.round_sigma) == (ROUNDS.rounds, ROUNDS.round_sigma)


@pytest.mark.thorough
def test_where_cores_are_to_spare_a_transfer_keeps_its_charge():
    truth = machine(step_s=0.01, crowding=1.0, transfer_s=0.004, wake_s=0.001)
    free = replace(truth, cores=64, swarm=None)
    assert free.crowding == 0
    found = fitted(free, replace(rounds_of(truth, 20), round_s=0.5), rounds_of(truth, 60)).calibration
    assert found.rates.seconds_a_transfer == 0.004, "nothing that is simulated depends on it"
