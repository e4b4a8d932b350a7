"""Nodes without a device compute as a machine was measured."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from node.cli import main
from node.config.schema import from_raw
from node.planning.calibrated import EXCHANGE_ONE_WAYS, MEASURED, as_measured, measured_device
from node.planning.calibration import (
    CallTimes,
    ExchangeTiming,
    MachineCalibration,
    StepTiming,
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
    exchange=ExchangeTiming(members=4, payload_bytes=300, median_s=0.2, loop_s=0.0123, lost_s=0.0246),
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


def test_a_second_of_a_shared_core_takes_from_training_what_exchanges_took():
    device = measured_device(MACHINE, DIGITS, neighbours=3)
    assert device.step_s == 0.012, "the mean: rounds are made of many steps"
    assert not device.spare_core
    assert device.encode_s == pytest.approx(2 * 0.001, rel=0.01), "training lost 24.6 ms by 12.3 ms of a core"
    assert device.decode_s == pytest.approx(2 * 0.0005, rel=0.01)
    assert device.aggregate_s == pytest.approx(2 * 0.002, rel=0.01)
    assert device.stream_s == pytest.approx(2 * (0.0123 - 3 * 0.0001) / 6)
    assert device.evaluate_s == 0.03


def test_what_is_left_of_an_exchange_is_waiting():
    device = measured_device(MACHINE, DIGITS, neighbours=3)
    computed = device.verify_s + (3 + 2) * device.stream_s
    assert EXCHANGE_ONE_WAYS * device.wake_s + computed == pytest.approx(0.2)
    fast = replace(MACHINE, exchange=replace(MACHINE.exchange, median_s=0.001))
    assert measured_device(fast, DIGITS, neighbours=3).wake_s == 0.0


def test_a_core_to_spare_is_charged_as_it_is():
    device = measured_device(replace(MACHINE, cores=16), DIGITS, neighbours=3)
    assert device.spare_core
    assert device.encode_s == pytest.approx(0.001, rel=0.01)


def test_settings_of_a_run_count():
    config = from_raw({"task": {"name": "digits"}, "train": {"eval_examples": 512, "grad_accumulation": 2}})
    device = measured_device(replace(MACHINE, exchange=None), config, neighbours=3)
    assert device.evaluate_s == 0.06
    assert device.step_s == 0.024
    assert (device.wake_s, device.stream_s > 0) == (0.0, True)
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
