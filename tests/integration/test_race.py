"""A small race of real processes in network namespaces: two hosts, two links. It needs root; `make soak` runs it."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from node.bench.race.contestants import CONTESTANTS
from node.bench.race.host import adamw, set_rate
from node.bench.race.namespaces import PREFIX, remove_abandoned
from node.bench.race.race import Race
from node.bench.race.spec import RaceSpec
from p2ptrain.tasks.base import Shard
from p2ptrain.training.model import build_model
from p2ptrain.training.train_config import lr_at

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(
        os.geteuid() != 0 or not (shutil.which("ip") and shutil.which("tc")), reason="needs root and iproute2"
    ),
]

SPEC = RaceSpec(hosts=2, steps=40, size="pico", keep_every=20, eval_examples=64)
NAMES = ["ddp", "ddp-bf16", "ddp-powersgd", "p2ptrain"]


def namespaces(pid: int) -> list[str]:
    """Those of one race: others may be running."""
    told = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    return [line.split()[0] for line in told.splitlines() if line.startswith(f"{PREFIX}-{pid}-")]


def synchronous_loss() -> float:
    """Of one process that takes the mean of both hosts' gradients at every step."""
    task, config = SPEC.task(), SPEC.train()
    model = build_model(task, SPEC.seed)
    optimizer = adamw(model, SPEC.learning_rate)
    for step in range(SPEC.steps):
        set_rate(optimizer, lr_at(step, SPEC.steps, config))
        optimizer.zero_grad()
        for rank in range(SPEC.hosts):
            shard = Shard(index=rank, count=SPEC.hosts)
            batch = task.train_batch(step, seed=SPEC.seed, shard=shard, size=SPEC.batch)
            (task.loss(model, batch) / SPEC.hosts).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), config.clip_norm)
        optimizer.step()
    with torch.no_grad():
        (batch,) = task.eval_batches(SPEC.eval_examples)
        return float(task.loss(model.eval(), batch))


def test_all_reach_their_last_step_on_both_links_and_leave_nothing_behind(tmp_path: Path) -> None:
    contestants = [CONTESTANTS.get(name) for name in NAMES]
    race = Race(contestants=contestants, links=[2, 1000], to=[4.0], spec=SPEC, limit_s=120, out=tmp_path / "out")
    rows = {(row["contestant"], row["link_mbit"]): row for row in race.run()}
    assert namespaces(os.getpid()) == []
    assert set(rows) == {(name, mbit) for name in NAMES for mbit in (2, 1000)}
    for row in rows.values():
        assert row["complete"]
        assert row["to"][0]["seconds"] > 0  # type: ignore[index]
        assert all(one["step"] < other["step"] for one, other in pairwise(row["curve"]))  # type: ignore[arg-type, index]
    assert rows["ddp", 1000]["final_loss"] == pytest.approx(synchronous_loss(), abs=0.02)
    fast, slow = (float(str(rows["ddp", mbit]["step_s"])) for mbit in (1000, 2))
    on_the_wire_s = float(str(rows["ddp", 2]["sent_kb_a_step"])) * 8e3 / 2e6
    assert slow >= 0.8 * on_the_wire_s > 2 * fast, "the link is what it is said to be"
    sent = {name: float(str(rows[name, 1000]["sent_kb_a_step"])) for name in NAMES}
    assert sent["ddp-powersgd"] < sent["ddp-bf16"] < 0.6 * sent["ddp"]
    assert sent["p2ptrain"] < 0.1 * sent["ddp"]


@pytest.fixture
def heard() -> Iterator[None]:
    """SIGINT as a terminal's child has it: what was started in a shell's background ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_an_interrupted_race_leaves_nothing_and_a_killed_one_is_cleaned_after(tmp_path: Path, heard: None) -> None:
    words = [sys.executable, "-m", "p2ptrain", "bench", "race", "--quick", "--contestants", "ddp", "--json"]
    for number in (signal.SIGINT, signal.SIGKILL):
        with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            while not namespaces(process.pid):
                assert process.poll() is None
                time.sleep(0.05)
            time.sleep(2)
            process.send_signal(number)
            process.wait(60)
        if number == signal.SIGINT:
            assert namespaces(process.pid) == []
    assert namespaces(process.pid) != []
    remove_abandoned()
    assert namespaces(process.pid) == []
