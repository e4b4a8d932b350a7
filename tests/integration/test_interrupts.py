"""Ctrl-C while `up` and `node` start: they end at once with 130, whatever is being imported, and say nothing."""

import itertools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from processes_harness import heed_ctrl_c
from sizes import thorough_but

pytestmark = pytest.mark.alone

SCRIPT = Path(__file__).parents[2] / "scripts" / "interrupts.py"
PROMISE_S = 5.0
STARTS = 6

SWALLOWS = '''"""A library whose import takes Ctrl-C for the failure of a part that it can do without."""
import pathlib
import time

try:
    pathlib.Path(__file__).with_name("importing").touch()
    time.sleep(60)
except BaseException:
    pass
'''


@pytest.mark.parametrize(
    ("number", "command"),
    thorough_but(
        {(signal.SIGINT, "up"), (signal.SIGTERM, "node")},
        itertools.product([signal.SIGINT, signal.SIGTERM], ["up", "node"]),
    ),
)
def test_an_import_that_swallows_it_does_not_keep_it(tmp_path: Path, command: str, number: signal.Signals) -> None:
    (tmp_path / "torch.py").write_text(SWALLOWS)
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    words = [command, "--task", "digits", "--run-dir", str(tmp_path / "run")]
    program = subprocess.Popen(
        [sys.executable, "-m", "p2ptrain", *words],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=heed_ctrl_c,
        env=os.environ | {"PYTHONPATH": path},
    )
    try:
        deadline = time.monotonic() + 60
        while not (tmp_path / "importing").exists():
            assert program.poll() is None, program.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.01)
        os.killpg(program.pid, number)
        said = program.communicate(timeout=PROMISE_S)[1]
    finally:
        program.kill()
        program.wait()
    assert program.returncode == (130 if number == signal.SIGINT else -signal.SIGTERM)
    assert said == b""


@pytest.mark.thorough
def test_at_random_moments_of_its_start() -> None:
    ran = subprocess.run(
        [sys.executable, SCRIPT, "--count", str(STARTS), "--seed", "5"], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert len([line for line in ran.stdout.splitlines() if line.startswith(("up ", "node "))]) == 2


@pytest.mark.thorough
def test_a_doctor_that_measures_ends_with_130_and_no_other_word(tmp_path: Path) -> None:
    """The thread that trains is inside torch, and Python cannot end around it: the process has to leave at once."""
    words = ["doctor", "--task", "digits", "--run-dir", str(tmp_path / "run"), "--measure", "60s"]
    program = subprocess.Popen(
        [sys.executable, "-m", "p2ptrain", *words],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=heed_ctrl_c,
    )
    assert program.stderr is not None
    try:
        assert any(b"training for 60 seconds" in line for line in program.stderr)
        time.sleep(0.5)
        os.killpg(program.pid, signal.SIGINT)
        said = program.communicate(timeout=PROMISE_S)[1]
    finally:
        program.kill()
        program.wait()
    assert (program.returncode, said) == (130, b"")
