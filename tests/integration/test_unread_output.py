"""`p2ptrain node` and `up` whose pipe nobody reads on, as with a stopped terminal: they train, and end on Ctrl-C."""

import json
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
def test_a_swarm_whose_output_nobody_reads_comes_to_its_end_and_leaves_its_report(tmp_path: Path) -> None:
    words = ("up", "--nodes", "2", "--rounds", "200", "--json", "--run-dir", str(tmp_path / "run"))
    command = [sys.executable, "-m", "p2ptrain", *words]
    for each in SETTINGS:
        command += ["--set", each] if not each.startswith("train.rounds") else []
    read, write = os.pipe()
    try:
        with subprocess.Popen(command, stdout=write) as process:
            try:
                assert process.wait(180) == 0
            finally:
                process.kill()
    finally:
        os.close(read)
        os.close(write)
    logs = [tmp_path / "run" / f"node-{number}" / "events.jsonl" for number in range(2)]
    assert sum(log.stat().st_size for log in logs) > 2 * PIPE_BYTES, "more than the pipe holds"
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["nodes"][0]["rounds"] == 200


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
