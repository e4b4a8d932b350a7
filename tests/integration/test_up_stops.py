"""Every way in which an `up` is stopped from outside: nobody is left behind, and what was learned is kept."""

import json
import signal
import time
from pathlib import Path

import psutil
import pytest
from processes_harness import PACED, PATIENCE_S, Program, gone, living, read_log, up

STOP_S = 5.0
"""The promise about Ctrl-C; a machine that is busy with other things gets it too."""
LONG = ("--rounds", 500, *PACED)


def checkpoint(folder: Path) -> int:
    """The round of a node's newest checkpoint."""
    return max(int(path.name.removeprefix("round-")) for path in (folder / "checkpoint").iterdir())


def stopped(program: Program, number: signal.Signals) -> tuple[int, float]:
    """Send the signal to the process group, as a terminal does; exit code and seconds."""
    began = time.monotonic()
    program.interrupt(number)
    code = program.end()
    return code, time.monotonic() - began


def test_ctrl_c_keeps_what_was_learned_and_the_same_folder_goes_on(tmp_path: Path) -> None:
    with up(tmp_path, "--nodes", 2, *LONG) as program:
        program.hear_round(4)
        code, seconds = stopped(program, signal.SIGINT)
        assert code == 130
        assert seconds < STOP_S
        assert living(program.pids()) == []
        assert len(program.heard("interrupted")) == 2
        assert not program.heard("died")
        assert program.stderr == ""
    reached = {}
    for index in range(2):
        folder = tmp_path / "run" / f"node-{index}"
        assert read_log(folder)[-1]["event"] == "interrupted"
        assert json.loads((folder / "summary.json").read_text())["rounds"] == checkpoint(folder)
        assert (folder / "stderr.log").read_text() == ""
        reached[f"node-{index}"] = checkpoint(folder)
    more = max(reached.values()) + 4
    with up(tmp_path, "--nodes", 2, *PACED, "--rounds", more) as program:
        assert program.end() == 0
        for name, round_ in reached.items():
            assert [event["round"] for event in program.heard("resumed", node=name)] == [round_]
            rounds = [event["round"] for event in program.heard("round", node=name)]
            assert rounds == list(range(round_ + 1, more + 1))
            assert [event["round"] for event in program.heard("evaluated", node=name)] == [more]
        for summary in json.loads(program.lines[-1])["nodes"]:
            assert summary["resumed_from"] == f"round {reached[node_of(program, summary['peer_id'])]}"
            assert summary["eval_loss_last"] < summary["eval_loss_first"]
            assert summary["tokens"] == 16 * summary["steps"], "both are the run's, and not the last process's"


def node_of(program: Program, peer_id: str) -> str:
    name: str = program.heard("started", peer_id=peer_id)[0]["node"]
    return name


def test_a_killed_supervisor_leaves_no_orphans(tmp_path: Path) -> None:
    with up(tmp_path, "--nodes", 1, *LONG) as program:
        program.hear_round(2)
        program.process.kill()
        assert gone(program.pids(), within_s=15)
        assert checkpoint(tmp_path / "run" / "node-0") >= 2
        assert program.end() == -signal.SIGKILL


@pytest.mark.parametrize(
    ("event", "number"),
    [
        ("", signal.SIGINT),
        pytest.param("started", signal.SIGTERM, marks=pytest.mark.thorough),
        pytest.param("started", signal.SIGHUP, marks=pytest.mark.thorough),
        pytest.param("started", signal.SIGUSR1, marks=pytest.mark.thorough),
    ],
)
def test_it_may_be_stopped_at_any_time(tmp_path: Path, event: str, number: signal.Signals) -> None:
    """While the nodes import their libraries, and while they look for each other."""
    with up(tmp_path, "--nodes", 2, *LONG, real=True) as program:
        if event:
            program.hear(event)
        children = wait_for_children(program)
        code, seconds = stopped(program, number)
        assert code == 130
        assert seconds < STOP_S
        assert living(children) == []
        assert not program.heard("died")
        assert "Traceback" not in program.stderr


def wait_for_children(program: Program) -> list[int]:
    """The nodes' processes, as soon as they are there."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        children = living(child.pid for child in psutil.Process(program.pid).children())
        if len(children) == 2:
            return children
        time.sleep(0.01)  # nothing is told of them yet: that they are stopped before they speak is the test
    raise AssertionError(f"no nodes were started: {program.stderr}")
