"""`p2ptrain node` and `up` whose pipe nobody reads on, as with a stopped terminal: they train, and end on Ctrl-C."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

PIPE_BYTES = 64 << 10
"""What a pipe of Linux holds."""
SETTINGS = (
    "task.name=quadratic",
    "train.rounds=100000",
    "train.inner_steps=1",
    "train.eval_every=1",
    "network.mdns=false",
    "node.metrics_port=-1",
)


@pytest.mark.paired
@pytest.mark.thorough
@pytest.mark.parametrize(
    ("words", "name"),
    [(("node", "--json"), "node"), (("node",), "node"), (("up", "--nodes", "2", "--json"), "node-0")],
)
def test_what_nobody_reads_holds_no_training_up_nor_ctrl_c(tmp_path: Path, words: tuple[str, ...], name: str) -> None:
    command = [sys.executable, "-m", "p2ptrain", *words, "--run-dir", str(tmp_path / "run")]
    for each in SETTINGS:
        command += ["--set", each]
    log = tmp_path / "run" / name / "events.jsonl"
    read, write = os.pipe()
    try:
        with subprocess.Popen(command, stdout=write) as process:
            try:
                until = time.monotonic() + 120
                while not log.exists() or log.stat().st_size < 8 * PIPE_BYTES:  # lines for people are not that short
                    assert process.poll() is None
                    assert time.monotonic() < until, "it stands still"
                    time.sleep(0.2)
                process.send_signal(signal.SIGINT)
                assert process.wait(30) == 130
            finally:
                process.kill()
    finally:
        os.close(read)
        os.close(write)
