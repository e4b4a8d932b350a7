"""`p2ptrain node` and `up` with the trainer in a process of its own (`node.lane = "process"`): real processes."""

import signal
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import torch
from processes_harness import DIGITS, PACED, PATIENCE_S, Program, node, up

from node.system.tensor_channel import supported
from node.training.checkpoint import CheckpointStore

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.paired,
    pytest.mark.slow,
    pytest.mark.skipif(not supported(), reason="needs memfd and sequenced datagrams"),
]

APART = ("--set", "node.lane=process")
HASTY_S = 2.0
"""In which nobody may be left behind, on a busy machine."""


def trainer_of(program: Program, pid: int | None = None) -> psutil.Process:
    """The process in which a node (by default the program's own) trains."""
    return next(
        each
        for each in psutil.Process(pid or program.pid).children()
        if each.status() != psutil.STATUS_ZOMBIE and "node.roles.trainer_program" in each.cmdline()
    )


def until(holds: Callable[[], bool], within_s: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def kept(run: Path, name: str = "node") -> dict[str, torch.Tensor]:
    found = CheckpointStore(run / name / "checkpoint").newest()
    assert found is not None
    return dict(found.tensors)


def warnings(program: Program) -> list[str]:
    return [each["message"] for each in program.heard("warning", about="trainer")]


def test_it_computes_the_same_bits_and_goes_on_from_its_folder(tmp_path: Path) -> None:
    words = (*PACED, "--set", "node.shard_index=0")
    steps: list[list[int]] = []
    for rounds in (2, 3):
        with node(tmp_path / "here", *words, "--rounds", rounds) as program:
            assert program.end() == 0
            steps.append([each["steps"] for each in program.heard("round")])
        with node(tmp_path / "there", *words, *APART, "--rounds", rounds) as program:
            program.hear("started")
            held = trainer_of(program)
            assert not held.net_connections("tcp")
            assert program.end() == 0
            steps.append([each["steps"] for each in program.heard("round")])
        assert not held.is_running()
    assert steps == [[20, 20], [20, 20], [20], [20]], "else rounds took longer than planned, and bits tell nothing"
    here, there = kept(tmp_path / "here" / "run"), kept(tmp_path / "there" / "run")
    assert here.keys() == there.keys()
    assert [name for name in here if not torch.equal(here[name], there[name])] == []


def test_another_trainer_takes_the_place_of_one_that_was_killed(tmp_path: Path) -> None:
    words = (*PACED, "--rounds", "40", "--set", "node.checkpoint_every=1")
    with node(tmp_path / "first", *words, "--set", "node.wait_for=1") as neighbour:
        address = neighbour.hear("started")["addresses"][0]
        with node(tmp_path / "apart", *words, *APART, "--peer", address) as program:
            program.hear_round(2)
            trainer_of(program).kill()
            assert program.end() == 0
            lost, again = warnings(program)
            assert "was killed by SIGKILL: another one begins round" in lost
            assert again.startswith("training goes on in process")
            rounds = program.heard("round")
            assert program.heard("finished")[0]["summary"]["rounds"] == 40
            assert rounds[-1]["train_loss"] < 0.7 * rounds[0]["train_loss"]
            assert sum(each["members"] == 2 for each in rounds) > 10
        assert neighbour.end() == 0
        assert not neighbour.heard("banned")
        assert not neighbour.heard("equivocation")


def test_one_that_is_killed_twice_in_a_round_ends_the_node(tmp_path: Path) -> None:
    with node(tmp_path, *PACED, *APART, "--rounds", "3", "--inner-steps", "5000") as program:
        program.hear("started")
        for number in (1, 2):
            until(lambda: bool(program.heard("warning", about="trainer", recovered=True)) or number == 1)  # noqa: B023
            trainer_of(program).kill()
            if number == 1:
                program.hear("warning", about="trainer")
        assert program.end() == 1
        told = program.heard("failed")[0]
        assert "was killed by SIGKILL, for the second time in round 1; no checkpoint was written" in told["error"]
        assert "go on with" in told["hint"]


def test_nobody_is_left_behind_and_workers_hold_no_sockets(tmp_path: Path) -> None:
    told = tmp_path / "told"
    words = ("--task", "loading_digits:create", "--set", f"task.told={told}", *DIGITS[2:], "--rounds", "1000")
    with node(tmp_path, *words, *APART) as program:
        program.hear_round(1)
        trainer, *workers = [psutil.Process(int(each)) for each in told.read_text().split()]
        assert trainer == trainer_of(program)
        assert len(workers) == 2
        ports = {each.laddr.port for each in psutil.Process(program.pid).net_connections("tcp")}
        assert ports
        for each in (trainer, *workers):
            assert not each.net_connections("inet")
        ends = sockets_of(trainer)
        assert ends, "the trainer's own ends of its channels"
        for worker in workers:
            assert not ends & sockets_of(worker)
        trainer.kill()
        until(lambda: not any(map(lives, workers)), HASTY_S)
        program.hear("warning", about="trainer", recovered=True)
        until(lambda: told.read_text().split()[0] != str(trainer.pid))
        others = [psutil.Process(int(each)) for each in told.read_text().split()]
        program.process.kill()
        until(lambda: not any(map(lives, others)), HASTY_S)


def sockets_of(process: psutil.Process) -> set[str]:
    """What its descriptors are open on, of sockets."""
    links = [str(each.readlink()) for each in Path(f"/proc/{process.pid}/fd").iterdir()]
    return {each for each in links if each.startswith("socket:")}


def lives(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_signals_save_the_model_and_it_goes_on(number: signal.Signals, tmp_path: Path) -> None:
    with node(tmp_path, *PACED, *APART, "--rounds", "1000") as program:
        program.hear_round(2)
        trainer_of(program).send_signal(
            number if number == signal.SIGUSR1 else signal.SIGTERM
        )  # to all, as systemd and SLURM do
        program.interrupt(number)
        assert program.end() == 130
        (written,) = program.heard("checkpoint")
    with node(tmp_path, "--rounds", written["round"] + 1) as program:
        assert program.hear("resumed")["round"] == written["round"]
        assert trainer_of(program)
        assert program.end() == 0


def test_its_page_counts_both_processes(tmp_path: Path) -> None:
    with node(tmp_path, *PACED, *APART, "--rounds", "1000") as program:
        url = program.hear("started")["metrics_url"]
        found = program.hear_round(2)
        both = [psutil.Process(program.pid), trainer_of(program)]
        assert found["rss_bytes"] > max(each.memory_info().rss for each in both)
        assert found["step_s"] >= 0.02
        with urllib.request.urlopen(f"{url}/metrics") as answer:
            text = answer.read().decode()
        for name in ("train_loss", "step_seconds", "rss_bytes", "event_loop_lag_seconds_bucket"):
            assert f"p2ptrain_{name}" in text, name


def test_a_swarm_of_up_trains_apart(tmp_path: Path) -> None:
    with up(tmp_path, *DIGITS, *APART, "--nodes", "2", "--rounds", "3", "--inner-steps", "5") as swarm:
        pids = {event["pid"] for event in swarm.until(lambda: swarm.heard("started"), 2, "started", PATIENCE_S)}
        held = [trainer_of(swarm, pid) for pid in pids]
        assert swarm.end() == 0
        until(lambda: not any(map(lives, held)), HASTY_S)
