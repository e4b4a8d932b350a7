"""`p2ptrain bench blob` and `average`: real processes that move real bytes, and leave nothing behind."""

import json
import os
import signal
import time
from pathlib import Path

import psutil
import pytest
from processes_harness import PATIENCE_S, Program
from warm_forks import SERVER

pytestmark = pytest.mark.paired

SMALL = ("--mib", 1, "--repetitions", 2, "--json")
LONG = ("--mib", 8, "--repetitions", 1000, "--json")


def children(program: Program) -> list[psutil.Process]:
    """All but the server that they are forked from (warm_forks.py)."""
    every = psutil.Process(program.pid).children(recursive=True)
    return [each for each in every if SERVER not in each.cmdline()]


def none_left(processes: list[psutil.Process]) -> bool:
    _, left = psutil.wait_procs(processes, timeout=20)
    return not [each for each in left if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]


def first_line(program: Program) -> None:
    """Wait until it has measured something: all its processes are at work."""
    deadline = time.monotonic() + PATIENCE_S
    while not program.lines:
        assert program.process.poll() is None, program.stderr
        assert time.monotonic() < deadline
        time.sleep(0.05)


def measured(folder: Path, *words: object) -> list[dict[str, float]]:
    with Program(folder, "bench", *words) as program:
        assert program.end() == 0, program.stderr
        return [json.loads(line) for line in program.lines]


def test_a_blob_goes_from_one_process_to_another(tmp_path: Path) -> None:
    rows = measured(tmp_path, "blob", *SMALL)
    assert [(row["benchmark"], row["repetition"], row["mib"]) for row in rows] == [("blob", 1, 1), ("blob", 2, 1)]
    for row in rows:
        assert 0 < row["publish_seconds"] < row["seconds"]
        assert row["mib_s"] == pytest.approx(1 / row["seconds"], rel=0.06)
        assert row["of_bare"] == pytest.approx(row["bare_seconds"] / row["seconds"], abs=0.1, rel=0.1)
        assert min(row["bare_mib_s"], row["tcp_mib_s"], row["meeting_seconds"]) > 0


@pytest.mark.parametrize(
    ("codec", "mib", "payload_mib", "way"),
    [
        pytest.param("none", 1, 1.0, "mesh", marks=pytest.mark.thorough),
        pytest.param("none", 3, 3.0, "parts", marks=pytest.mark.thorough),
        ("q2", 1, 0.064, "mesh"),
    ],
)
def test_three_peers_come_to_the_exact_mean(tmp_path: Path, codec: str, mib: int, payload_mib: float, way: str) -> None:
    words = ("--peers", 3, "--codec", codec, "--mib", mib, "--repetitions", 2, "--json")
    rows = measured(tmp_path, "average", *words)
    assert [(row["benchmark"], row["repetition"]) for row in rows] == [("average", 1), ("average", 2)]
    for row in rows:
        assert (row["peers"], row["mib"], row["codec"], row["way"]) == (3, mib, codec, way)
        assert 0 < row["publish_seconds"] < row["seconds"]
        assert row["payload_mib"] == pytest.approx(payload_mib, abs=0.002)
        assert 0 < row["rounding"] <= 1
        assert row["mib_s"] == pytest.approx(3 * mib / row["seconds"], rel=0.05)
        assert "hivemind is not installed" in str(row["hivemind_absent"])


def test_a_rival_that_does_not_run_is_told_of_and_the_rest_goes_on(tmp_path: Path) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho 'no module named hivemind' >&2\nexit 1\n")
    broken.chmod(0o755)
    (row,) = measured(tmp_path, "average", "--peers", 2, "--mib", 1, "--repetitions", 1, "--hivemind", broken, "--json")
    assert row["seconds"] > 0
    assert "hivemind has died: exit code 1; no module named hivemind" in str(row["hivemind_absent"])


@pytest.mark.parametrize("words", [pytest.param(("blob",), marks=pytest.mark.thorough), ("average", "--peers", 2)])
def test_ctrl_c_leaves_no_process(tmp_path: Path, words: tuple[object, ...]) -> None:
    with Program(tmp_path, "bench", *words, *LONG) as program:
        first_line(program)
        started = children(program)
        assert len(started) == 2
        program.interrupt()
        assert program.end(within_s=20) == 130
        assert none_left(started)
        assert "Traceback" not in program.stderr


def test_a_killed_parent_leaves_no_orphans(tmp_path: Path) -> None:
    with Program(tmp_path, "bench", "blob", *LONG) as program:
        first_line(program)
        started = children(program)
        program.process.kill()
        assert none_left(started)


@pytest.mark.thorough
def test_a_child_that_dies_is_named_and_ends_it(tmp_path: Path) -> None:
    with Program(tmp_path, "bench", "average", "--peers", 2, *LONG) as program:
        first_line(program)
        started = children(program)
        os.kill(started[0].pid, signal.SIGKILL)
        assert program.end(within_s=30) == 1
        assert none_left(started)
        assert program.stderr.startswith("error: peer ")
        assert "has died: killed by SIGKILL" in program.stderr
        assert program.stderr.count("\n") == 1
