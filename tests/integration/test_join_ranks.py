"""`p2ptrain.join` under torchrun: the ranks of one DDP model are one member of the swarm."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from processes_harness import PATIENCE_S, Program

HERE = Path(__file__).parent

pytestmark = [pytest.mark.thorough, pytest.mark.paired, pytest.mark.slow]


def torchrun(out: Path, peer: str, steps: int) -> subprocess.CompletedProcess[str]:
    """Two ranks, to their end."""
    out.mkdir(exist_ok=True)
    words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "ddp_loop.py"]
    return subprocess.run(
        [sys.executable, *words, str(out), peer, str(steps)],
        cwd=HERE,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(HERE.parents[1]), str(HERE)])},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def ranks(out: Path, peer: str, steps: int) -> list[dict[str, Any]]:
    """What each of two ranks has written."""
    done = torchrun(out, peer, steps)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads((out / f"rank{rank}.json").read_text()) for rank in (0, 1)]


def test_two_ranks_are_one_member_and_go_on_from_its_folder(tmp_path: Path) -> None:
    with Program(tmp_path / "first", tmp_path / "first", run=[HERE / "quiet_loop.py"]) as neighbour:
        address = neighbour.hear("listens")["address"]
        one, other = ranks(tmp_path / "ranks", address, 400)
        events = (Path(one["run_dir"]) / "events.jsonl").read_text().splitlines()
    assert one["digest"] == other["digest"], "bit for bit, corrections and all"
    assert one["run_dir"] == other["run_dir"]
    assert one["peers"] == 1
    rounds = [fields for fields in map(json.loads, events) if fields["event"] == "round"]
    assert max(fields["members"] for fields in rounds) == 2
    assert one["loss"] < 1.0, "5.0 at the beginning"

    again, followed = ranks(tmp_path / "ranks", "-", 20)
    assert again["first"] == followed["first"] >= 400
    assert again["done"] == followed["done"] == again["first"] + 20
    assert again["digest"] == followed["digest"], "the optimizer's state is rank 0's as well"
    assert again["loss"] < 1.0


def test_a_node_that_cannot_begin_ends_the_others_too(tmp_path: Path) -> None:
    kept = tmp_path / "run" / "node"
    (kept / "checkpoint" / "round-00000001").mkdir(parents=True)
    (kept / "genesis.f32").write_bytes(b"1234")
    done = torchrun(tmp_path, "-", 5)
    assert done.returncode != 0
    assert "RunError: rank 0: " in done.stderr
