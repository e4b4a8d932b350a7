"""What a calibration learns from rounds of real nodes, tried on simulated ones whose charges are known."""

from dataclasses import replace

import pytest
from test_calibrated import MACHINE

from node.planning.calibration import MachineCalibration, SwarmRounds, SwarmTiming
from node.planning.fitted_swarm import fitted, simulated_rounds, step_and_round

ROUNDS = SwarmRounds(
    members=3, inner_steps=20, rounds=16, steps=20.0, round_s=0.2, sigma=0.2, exchange_s=0.1, work_s=0.01
)


def machine(*, step_s: float, crowding: float, transfer_s: float, wake_s: float) -> MachineCalibration:
    """One with these charges: the truth."""
    timing = SwarmTiming(rounds=ROUNDS, step_s=step_s, crowding=crowding, wake_s=wake_s)
    return replace(MACHINE, rates=replace(MACHINE.rates, seconds_a_transfer=transfer_s), swarm=timing)


def rounds_of(truth: MachineCalibration, inner_steps: int) -> SwarmRounds:
    assert truth.swarm is not None
    return simulated_rounds(
        replace(truth, swarm=replace(truth.swarm, rounds=replace(truth.swarm.rounds, inner_steps=inner_steps)))
    )


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


def test_rounds_of_as_many_steps_say_nothing_of_a_round():
    assert step_and_round(ROUNDS, ROUNDS) == (0.01, 0.0)
