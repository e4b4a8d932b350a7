"""`p2ptrain bench calibrate`, and what a plan makes of it."""

import errno
import json
import os
from dataclasses import replace
from multiprocessing import Pipe

import pytest
from plan_requests import request
from test_fitted_swarm import ROUNDS

from node.bench import calibrate
from node.bench.calibrate import CODECS, Calibrate
from node.bench.pilot_swarm import PilotSwarm
from node.cli import main
from node.planning.calibration import MachineCalibration, SwarmRounds, read_calibration, usual_rates
from node.planning.fitted_swarm import simulated_rounds
from node.planning.forecast import forecast
from node.planning.model_shape import shape_of_byte_lm
from node.system.errors import RunError


@pytest.fixture(scope="module")
def measured(tmp_path_factory) -> MachineCalibration:
    file = tmp_path_factory.mktemp("calibration") / "machine.json"
    small = Calibrate(size="pico", batch=2, seconds=0.01, numel=5000, repetitions=1, network=False, out=file)
    rows = list(small.run())
    assert len(rows) == 2 + 2 * len(CODECS) + 1 + 3 + 1
    return read_calibration(file)


def test_what_is_written_is_read_back_as_it_was(measured, tmp_path):
    file = tmp_path / "again.json"
    file.write_text(measured.to_json())
    assert read_calibration(file) == measured
    assert measured.step.parameters == 32_928
    assert measured.step.low_s <= measured.step.median_s <= measured.step.high_s
    assert set(measured.rates.encode) == set(CODECS)


def test_a_plan_takes_the_step_of_the_same_task_as_it_is_and_others_by_their_operations(measured):
    shape = shape_of_byte_lm("pico")
    asked = replace(
        request(device="cpu-core", length=64, settings={"train": {"batch_size": 2}}), shape=shape, calibration=measured
    )
    assert forecast(asked).step_s == measured.step.median_s
    four = asked.with_settings(train={"batch_size": 4})
    assert forecast(four).step_s == pytest.approx(2 * measured.step.median_s)
    assert forecast(replace(asked, step_s=0.5)).step_s == 0.5


def test_trainers_that_share_cores_make_work_count(measured):
    shared = replace(measured.step, processes=4, mean_s=0.012, cpu_s=0.006)
    crowded = replace(measured, cores=2, threads=1, step=shared)
    alone = replace(measured, cores=8, threads=1, step=replace(measured.step, processes=1))
    assert (crowded.crowding, alone.crowding) == (2.0, 0.0)
    asked = replace(request(device="cpu-core", length=64), shape=shape_of_byte_lm("pico"))
    rounds = [forecast(replace(asked, calibration=each)).times for each in (alone, crowded)]
    assert rounds[1].train_s > rounds[0].train_s


def test_a_codec_that_was_not_measured_is_as_slow_as_its_parts():
    rates = usual_rates()
    assert rates.encode_rate("q2") == rates.encode["q2"]
    assert rates.encode_rate("lossless+q2") < rates.encode["q2"]
    assert rates.encode_rate("a plug-in's") == rates.encode["topk"]
    assert rates.encode_rate("demo") < rates.encode["topk"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda raw: raw.pop("step"), "step"),
        (lambda raw: raw["step"].update(median_s=0), "step.median_s"),
        (lambda raw: raw["step"].update(median_s="soon"), "step.median_s"),
        (lambda raw: raw["rates"]["encode"].update(q2=-1.0), "rates.encode.q2"),
        (lambda raw: raw.update(p2ptrain_calibration=99), "no calibration of this release"),
        (lambda raw: raw.update(more=1), "more"),
    ],
)
def test_a_file_that_is_none_is_refused_in_a_line(measured, tmp_path, change, said):
    raw = json.loads(measured.to_json())
    change(raw)
    file = tmp_path / "bad.json"
    file.write_text(json.dumps(raw))
    with pytest.raises(ValueError) as caught:
        read_calibration(file)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_text_that_is_no_json_is_refused(tmp_path):
    file = tmp_path / "bad.json"
    file.write_text("{")
    with pytest.raises(ValueError, match="is no JSON"):
        read_calibration(file)


@pytest.mark.slow
@pytest.mark.thorough
def test_trainers_at_once_are_processes(capsys):
    words = ("bench", "calibrate", "--size", "pico", "--batch", "1", "--processes", "2", "--seconds", "0.1", "--quick")
    assert main([*words, "--no-network", "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert rows[0]["part"] == "step"
    assert rows[0]["what"] == "2 at once"
    assert rows[0]["count"] >= 2
    assert rows[0]["mean_s"] >= rows[0]["median_s"] * 0.5


@pytest.mark.slow
@pytest.mark.thorough
def test_a_swarm_of_real_nodes_is_part_of_a_calibration(capsys, tmp_path):
    file = tmp_path / "machine.json"
    words = ("bench", "calibrate", "--task", "digits", "--processes", "2", "--seconds", "0.1", "--quick", "--json")
    assert main([*words, "--out", str(file)]) == 0
    rounds = [row["rounds"] for line in capsys.readouterr().out.splitlines() if "rounds" in (row := json.loads(line))]
    measured = read_calibration(file)
    assert measured.swarm is not None
    assert measured.swarm.rounds == SwarmRounds(**rounds[0])
    assert [each["members"] for each in rounds] == [2, 2]
    assert rounds[0]["inner_steps"] != rounds[1]["inner_steps"]
    assert measured.swarm.rounds.exchange_s > 0
    simulated = simulated_rounds(measured)
    assert simulated.round_s == pytest.approx(measured.swarm.rounds.round_s, rel=0.2)


def test_a_swarm_whose_steps_take_too_long_is_left_out_and_said(monkeypatch):
    monkeypatch.setattr(PilotSwarm, "both", lambda *_: pytest.fail("it would take an hour"))
    slow = Calibrate(task="digits", processes=2)
    assert list(slow._swarm(60.0)) == []
    note = "\n".join(slow.summaries([{"part": "step"}])[0].notes)
    assert "no swarm was run" in note
    assert PilotSwarm(task={"name": "digits"}, members=2, batch=4, device="cpu", rounds=8).fits(1.0)


def test_a_folder_that_there_is_not_is_told_before_anything_is_measured(capsys, tmp_path):
    assert main(["bench", "calibrate", "--out", str(tmp_path / "none" / "machine.json")]) == 2
    assert "there is no folder" in capsys.readouterr().err


def test_a_folder_in_place_of_a_file_is_told_before_anything_is_measured(capsys, tmp_path):
    assert main(["bench", "calibrate", "--out", str(tmp_path)]) == 2
    assert "is there, and is no file" in capsys.readouterr().err


def test_a_full_disk_leaves_the_calibration_of_before(tmp_path, monkeypatch, capsys, measured):
    """And what was measured for minutes is printed."""

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    file = tmp_path / "machine.json"
    file.write_text("of before")
    monkeypatch.setattr(os, "fsync", full)
    monkeypatch.setattr(Calibrate, "_rows", lambda self: iter(()))
    monkeypatch.setattr(Calibrate, "_parts", lambda self, rows: measured)
    with pytest.raises(RunError, match="No space left"):
        list(Calibrate(size="pico", out=file).run())
    assert file.read_text() == "of before"
    assert json.loads(capsys.readouterr().out)["p2ptrain_calibration"]


def test_a_fit_that_fails_leaves_what_was_measured(tmp_path, monkeypatch, measured):
    def failing(*given: object) -> None:
        raise ValueError("it cannot be simulated")

    file = tmp_path / "machine.json"
    monkeypatch.setattr(Calibrate, "_rows", lambda self: iter(()))
    monkeypatch.setattr(Calibrate, "_parts", lambda self, rows: measured)
    monkeypatch.setattr(calibrate, "_rounds", lambda rows: [ROUNDS])
    monkeypatch.setattr(calibrate, "fits", failing)
    with pytest.raises(ValueError, match="cannot be simulated"):
        list(Calibrate(size="pico", out=file).run())
    assert read_calibration(file) == measured


def test_a_trainer_that_is_killed_ends_the_waiting_for_it():
    class Child:
        def __init__(self, exitcode: int | None) -> None:
            self.exitcode, self.is_ended = exitcode, False

        def terminate(self) -> None:
            self.is_ended = True

        def join(self) -> None:
            assert self.exitcode is not None, "only one that has ended is waited for"

    (well, says), (killed, silent) = Pipe(duplex=False), Pipe(duplex=False)
    children = [Child(None), Child(-9)]
    says.send(json.dumps([[[0.1, 0.1]], []]))
    answers = calibrate._answers({well: children[0], killed: children[1]})
    assert next(answers) == [[[0.1, 0.1]], []]
    silent.close()
    with pytest.raises(RunError, match="ended with -9"):
        next(answers)
    assert all(child.is_ended for child in children)


def test_a_size_that_there_is_not_is_one_line(capsys):
    assert main(["bench", "calibrate", "--size", "huge"]) == 2
    assert "byte-lm has no size 'huge'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("waits", "asked"),
    [
        pytest.param(1.0, [20, 6, 20], id="steps outlast exchanges"),
        pytest.param(1.5, [20, 90, 20], id="exchanges outlast steps"),
    ],
)
def test_the_first_pilot_is_run_before_and_after_the_second(monkeypatch, waits, asked):
    seen = []

    def of(swarm, inner_steps, step_s):
        seen.append(inner_steps)
        round_s = 0.1 * len(seen)
        return replace(ROUNDS, inner_steps=inner_steps, steps=waits * inner_steps, round_s=round_s)

    monkeypatch.setattr(PilotSwarm, "of", of)
    swarm = PilotSwarm(task={"name": "digits"}, members=2, batch=16, device="cpu", rounds=90)
    first, second = swarm.both(0.002)
    assert seen == asked
    assert (first.round_s, second.round_s) == (pytest.approx(0.2), pytest.approx(0.2)), (
        "the first and third, the second"
    )
    assert (first.inner_steps, second.inner_steps) == (20, asked[1])
