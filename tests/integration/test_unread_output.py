"""`p2ptrain node`, `up` and `join` whose pipe nobody reads on, as with a stopped terminal: they train, and end."""

import json
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
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


LOOP = """
import sys, torch, p2ptrain
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
with p2ptrain.join(model, optimizer, run_dir=sys.argv[1], rounds=20, inner_steps=2, settings={
    "network.listen": ["/ip4/127.0.0.1/tcp/0"], "network.mdns": False, "node.metrics_port": -1,
}) as swarm:
    for _ in range(40):
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
print("trained", flush=True)
"""


@pytest.mark.paired
@pytest.mark.thorough
def test_a_loop_is_not_held_up_by_lines_of_its_node_that_nobody_reads(tmp_path: Path) -> None:
    """The pipe is full before the node tells anything. Only Python's own end waits for a reader of stderr."""
    read, write = os.pipe()
    with suppress(BlockingIOError):
        os.set_blocking(write, False)
        while True:
            os.write(write, b"x" * 512)
    os.set_blocking(write, True)
    command = [sys.executable, "-c", LOOP, str(tmp_path / "run")]
    with (
        os.fdopen(read, "rb") as reader,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=write, text=True) as process,
    ):
        os.close(write)
        try:
            assert process.stdout is not None
            selectable, *_ = select.select([process.stdout.fileno()], [], [], 120)
            assert selectable, "it stands still"
            assert process.stdout.readline() == "trained\n"
            reader.read()
            assert process.wait(30) == 0
        finally:
            process.kill()


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
