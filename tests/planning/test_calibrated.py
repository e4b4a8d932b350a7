"""Nodes without a device compute as a machine was measured."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from node.cli import main
from node.config.schema import from_raw
from node.planning.calibrated import MEASURED, as_measured, measured_device
from node.planning.calibration import (
    CallTimes,
    MachineCalibration,
    StepTiming,
    SwarmRounds,
    SwarmTiming,
    task_words,
    usual_rates,
)
from node.simulation.scenario_file import load_scenario
from node.simulation.verdict import replay_command
from node.system.errors import UsageError

STEP = StepTiming(
    task="digits",
    parameters=1000,
    batch=16,
    length=1,
    flops=1e6,
    median_s=0.009,
    low_s=0.009,
    high_s=0.009,
    mean_s=0.012,
    cpu_s=0.004,
    count=100,
    processes=4,
    evaluation_s=0.03,
)
MACHINE = MachineCalibration(
    cores=2,
    device="cpu",
    made="2026-11-26",
    step=STEP,
    rates=usual_rates(),
    calls=CallTimes(encode_s=0.001, decode_s=0.0005, aggregate_s=0.002),
    verify_s=0.0001,
    swarm=SwarmTiming(
        rounds=SwarmRounds(
            members=4, inner_steps=20, rounds=30, steps=25.0, round_s=0.2, round_sigma=0.6, exchange_s=0.1, work_s=0.01
        ),
        step_s=0.003,
        round_sigma=0.5,
        crowding=4.0,
        wake_s=0.002,
    ),
)
DIGITS = from_raw({"task": {"name": "digits"}})
SCENARIO = """
[task]
name = "digits"

[[nodes]]
name = "home"
count = 4

[[nodes]]
name = "fast"
device = "own"

[devices.own]
step_s = 0.001
"""


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    scenario, machine = tmp_path / "twin.toml", tmp_path / "machine.json"
    scenario.write_text(SCENARIO)
    machine.write_text(MACHINE.to_json())
    return scenario, machine


def test_a_device_computes_as_a_swarm_did():
    device = measured_device(MACHINE, DIGITS, neighbours=3)
    assert device.step_s * math.exp(0.5**2 / 2) == pytest.approx(0.003), "the mean: runs are made of many rounds"
    assert (device.sigma, device.round_sigma) == (0.0, 0.5), "as fitted, not as rounds came out"
    assert not device.spare_core
    assert device.encode_s == pytest.approx(4 * 0.001, rel=0.01), "a second of a core takes four on the clock"
    assert device.decode_s == pytest.approx(4 * 0.0005, rel=0.01)
    assert device.aggregate_s == pytest.approx(4 * 0.002, rel=0.01)
    assert device.stream_s == pytest.approx(4 * MACHINE.rates.seconds_a_transfer / 2)
    assert (device.evaluate_s, device.wake_s) == (0.03, 0.002)


def test_a_core_to_spare_is_charged_as_it_is():
    device = measured_device(replace(MACHINE, cores=16), DIGITS, neighbours=3)
    assert device.spare_core
    assert device.encode_s == pytest.approx(0.001, rel=0.01)


def test_settings_of_a_run_count():
    config = from_raw({"task": {"name": "digits"}, "train": {"eval_examples": 512, "grad_accumulation": 2}})
    device = measured_device(replace(MACHINE, swarm=None), config, neighbours=3)
    assert device.evaluate_s == 0.06
    assert device.step_s == 0.024
    assert (device.wake_s, device.round_sigma, device.stream_s > 0) == (0.0, 0.0, True)
    assert device.encode_s == pytest.approx(3 * 0.001, rel=0.01), "a step took 12 ms on the clock and 4 of a core"


def test_nodes_without_a_device_get_it_and_the_scenario_can_be_read_back(files, tmp_path):
    scenario, machine = files
    loaded = as_measured(load_scenario(scenario), machine)
    assert [group.device for group in loaded.scenario.nodes] == [MEASURED, "own"]
    assert "--calibration" in replay_command(loaded)
    again = tmp_path / "again.toml"
    again.write_text(loaded.to_toml())
    assert load_scenario(again).scenario == loaded.scenario


@pytest.mark.parametrize(
    ("sets", "said", "hint"),
    [
        (("task.name=byte-lm", "task.size=pico"), "nodes train byte-lm pico", "--task byte-lm --size pico"),
        (("train.batch_size=4",), "nodes train digits, batch 4", "--batch 4"),
        (("nodes.home.device=own",), "every group of nodes has a device", "leave device out"),
    ],
)
def test_a_calibration_of_something_else_is_refused_with_what_to_measure(files, sets, said, hint):
    scenario, machine = files
    with pytest.raises(UsageError) as caught:
        as_measured(load_scenario(scenario, sets), machine)
    assert said in caught.value.message
    assert hint in caught.value.hint


def test_a_file_that_is_no_calibration_is_one_line(files, capsys):
    scenario, machine = files
    machine.write_text(json.dumps({"p2ptrain_calibration": 1}))
    assert main(["simulate", str(scenario), "--calibration", str(machine)]) == 2
    assert "no calibration of this release" in capsys.readouterr().err


def test_a_task_in_words():
    assert task_words({"name": "digits", "size": "odd"}) == "digits"
    assert task_words({"name": "byte-lm"}) == "byte-lm nano"
    assert task_words({"name": "byte-lm", "size": "pico"}) == "byte-lm pico"
