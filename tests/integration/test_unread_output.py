"""`p2ptrain node` whose terminal is stopped, or whose pipe nobody reads on: it trains, and ends on Ctrl-C."""

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
@pytest.mark.parametrize("words", [("--json",), ()])
def test_a_node_whose_output_nobody_reads_trains_on_and_ends_on_ctrl_c(tmp_path: Path, words: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "p2ptrain", "node", *words, "--run-dir", str(tmp_path / "run")]
    for each in SETTINGS:
        command += ["--set", each]
    log = tmp_path / "run" / "node" / "events.jsonl"
    read, write = os.pipe()
    try:
        with subprocess.Popen(command, stdout=write) as node:
            try:
                until = time.monotonic() + 120
                while not log.exists() or log.stat().st_size < 8 * PIPE_BYTES:  # lines for people are not that short
                    assert node.poll() is None
                    assert time.monotonic() < until, "it stands still"
                    time.sleep(0.2)
                node.send_signal(signal.SIGINT)
                assert node.wait(30) == 130
            finally:
                node.kill()
    finally:
        os.close(read)
        os.close(write)
