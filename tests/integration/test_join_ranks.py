"""`p2ptrain.join` under torchrun: the ranks of one model, each whole or in parts, are one member of the swarm."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from processes_harness import PATIENCE_S, Program
from test_join import ALONE, loss_of, model_of

import p2ptrain

HERE = Path(__file__).parent

pytestmark = [pytest.mark.thorough, pytest.mark.paired, pytest.mark.slow]


def environment() -> dict[str, str]:
    path = os.pathsep.join([str(HERE.parents[1]), str(HERE)])
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}


def torchrun(
    out: Path, peer: str, steps: int, *more: str, loop: str = "ddp_loop.py", count: int = 2
) -> subprocess.CompletedProcess[str]:
    """So many ranks, to their end."""
    out.mkdir(exist_ok=True)
    words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count), loop]
    return subprocess.run(
        [sys.executable, *words, str(out), peer, str(steps), *more],
        cwd=HERE,
        env=environment(),
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
    assert one["words"] == other["words"] < 300, "one for several of 400 steps"

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


IN_SLICES = "sync.compressor=fp16"
"""A codec of which so few parameters as these make a slice for each rank. Of others they are one block."""


def sharded(out: Path, peer: str, steps: int, kind: str, *settings: str, count: int = 2) -> list[dict[str, Any]]:
    """What each of `count` ranks of a sharded model has written."""
    done = torchrun(out, peer, steps, kind, *settings, loop="sharded_loop.py", count=count)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads((out / f"rank{rank}.json").read_text()) for rank in range(count)]


def alone(steps: int) -> torch.Tensor:
    """The parameters after so many steps of one process, as the ranks take them."""
    model = model_of()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(steps):
        loss_of(model, step).backward()
        optimizer.step()
        optimizer.zero_grad()
    return torch.cat([each.detach().flatten() for each in model.parameters()])


def flat(found: dict[str, Any]) -> torch.Tensor:
    return torch.cat([torch.tensor(each) for each in found["parameters"]])


def test_sharded_ranks_go_on_in_other_numbers_and_cuts_and_in_one_process(tmp_path: Path) -> None:
    done = 0
    for kind, count, steps in (("fsdp", 2, 23), ("tp", 2, 7), ("both", 4, 6), ("fsdp", 3, 5)):
        found = sharded(tmp_path, "-", steps, kind, IN_SLICES, count=count)
        assert {each["first"] for each in found} == {done}
        done += steps
        expected_d = alone(done)
        assert all(torch.allclose(flat(each), expected_d, atol=1e-5) for each in found), (kind, count)
        if kind == "fsdp":
            assert sum(each["here"] for each in found) == len(expected_d), "each value in one rank"
    model = model_of()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with p2ptrain.join(model, optimizer, run_dir=tmp_path / "run", inner_steps=20, settings=ALONE, quiet=True) as swarm:
        assert swarm.global_step == done
        for step in range(done, done + 5):
            loss_of(model, step).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert torch.allclose(
        torch.cat([each.detach().flatten() for each in model.parameters()]), alone(done + 5), atol=1e-5
    )


@pytest.mark.parametrize(
    ("kind", "count", "setting"),
    [
        ("fsdp", 2, IN_SLICES),
        ("fsdp", 2, "sync.compressor=topk"),
        pytest.param("tp", 2, "sync.compressor=q2", marks=pytest.mark.soak),
        ("both", 4, IN_SLICES),
    ],
)
def test_a_sharded_model_and_a_process_of_its_own_train_one_model(
    tmp_path: Path, kind: str, count: int, setting: str
) -> None:
    with Program(tmp_path / "first", tmp_path / "first", run=[HERE / "quiet_loop.py"]) as neighbour:
        address = neighbour.hear("listens")["address"]
        found = sharded(tmp_path / "ranks", address, 300, kind, setting, count=count)
    events = Path(found[0]["run_dir"]) / "events.jsonl"
    rounds = told(events, "round")
    assert max(fields["members"] for fields in rounds) == 2
    assert rounds[-1]["accepted"] > 0
    assert rounds[-1]["rejected_by_reason"].keys() <= {"replayed"}, "links of before it came"
    whole = [fields["message"] for fields in told(events, "warning") if "whole vectors" in fields["message"]]
    in_rank_0 = "rank 0 holds whole vectors of this model: sync.compressor = topk looks at a whole vector"
    assert whole == ([in_rank_0] if "topk" in setting else [])
    assert all(torch.equal(flat(each), flat(found[0])) for each in found)
    trained = model_of()
    torch.nn.utils.vector_to_parameters(flat(found[0]), trained.parameters())
    assert loss_of(trained, 10_000) < 1.0, "5.0 at the beginning"


def test_a_loop_that_keeps_the_swarms_state_goes_on_in_slices(tmp_path: Path) -> None:
    found = sharded(tmp_path, "-", 0, "fsdp", "again", IN_SLICES)
    assert [each["counted"] for each in found] == [[12, 18]] * 2
    assert all(torch.allclose(flat(each), alone(24), atol=1e-5) for each in found)


def test_what_wants_a_whole_model_is_refused_in_all_ranks(tmp_path: Path) -> None:
    done = torchrun(tmp_path, "-", 5, "fsdp", "evaluate", loop="sharded_loop.py")
    assert done.returncode != 0
    assert done.stderr.count("UsageError: evaluate is given a copy of the model") == 2


def test_a_killed_rank_ends_the_site_and_torchrun_starts_it_again(tmp_path: Path) -> None:
    words = ["-m", "torch.distributed.run", "--standalone", "--max-restarts", "2", "--nproc-per-node", "2"]
    events = tmp_path / "run" / "node" / "events.jsonl"
    with (tmp_path / "log").open("w") as log:
        site = subprocess.Popen(
            [sys.executable, *words, "sharded_loop.py", str(tmp_path), "-", "300", "fsdp", IN_SLICES],
            cwd=HERE,
            env=environment() | {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"},
            stdout=log,
            stderr=log,
        )
    try:
        for rank in (1, 0):
            seen = len(told(events, "checkpoint"))
            wait_until(lambda seen=seen: len(told(events, "checkpoint")) > seen)
            os.kill(pid_of_rank(rank, tmp_path), signal.SIGKILL)
            wait_until(lambda rank=rank: len(told(events, "resumed")) == 2 - rank)
        assert site.wait(PATIENCE_S) == 0, (tmp_path / "log").read_text()[-3000:]
    finally:
        site.kill()
    found = json.loads((tmp_path / "rank1.json").read_text())
    assert found["done"] == found["first"] + 300
    assert torch.allclose(flat(found), alone(found["done"]), atol=1e-5), "nothing of what was kept is lost"


def told(events: Path, event: str) -> list[dict[str, Any]]:
    lines = events.read_text().splitlines() if events.exists() else []
    return [fields for fields in map(json.loads, lines) if fields["event"] == event]


def pid_of_rank(rank: int, out: Path) -> int:
    """The process of this rank among those that write to `out`."""
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (folder / "cmdline").read_bytes().split(b"\0")
            variables = (folder / "environ").read_bytes().split(b"\0")
            if str(out).encode() in words and f"RANK={rank}".encode() in variables:
                return int(folder.name)
    raise AssertionError(f"there is no rank {rank}")


def wait_until(found: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not found():
        assert time.monotonic() < deadline
        time.sleep(0.1)
