"""What large models do otherwise, at a small size: files for what is too large for memory, and estimates in bf16.

Whole swarms under a virtual clock, with the sizes from which all this begins set to nothing.
"""

import errno
import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import sim_swarm
import torch
import trio
import trio.testing
from sim_swarm import swarm

from gossip.blobs import hashing_task
from gossip.core.ids import RunId
from node.config.schema import from_raw
from node.roles import assembly
from node.roles.assembly import NodeContext, run_info
from node.training import snapshots, sync_loop
from p2ptrain.saved.nameless_file import NamelessFile

STEP_SECONDS = 0.05
ROUNDS = 12


class Files:
    """Counts the files that were made."""

    def __init__(self, folder: Path) -> None:
        self.made = 0
        self.full = False
        self._folder = folder
        folder.mkdir()

    def __call__(self) -> NamelessFile:
        if self.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.made += 1
        return NamelessFile(self._folder)

    @property
    def left(self) -> list[Path]:
        return list(self._folder.iterdir())


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Files:
    made = Files(tmp_path / "files")
    monkeypatch.setattr(hashing_task, "FILED_FROM", 1)
    monkeypatch.setattr(snapshots, "LARGE", 1)
    monkeypatch.setattr(assembly, "LARGE", 1)
    monkeypatch.setattr(sync_loop, "LARGE_MODEL", 1)
    monkeypatch.setattr(sim_swarm, "NodeContext", partial(NodeContext, new_file=made))
    return made


async def joined_late(folder: Path, **settings: Any) -> list[float]:
    """Three train, and a fourth joins; their held-out losses."""
    shared = {"train": {"rounds": ROUNDS, "eval_every": 3}, "node": {"checkpoint_every": 2}, **settings}
    folder.mkdir()  # noqa: ASYNC240  # the clock is virtual
    async with swarm(folder) as members:
        for number in range(3):
            await members.start(f"n{number}", wait_for=2, **shared)
        await trio.sleep(6 * 5 * STEP_SECONDS)
        late = await members.start("late", wait_for=3, **shared)
        await members.finished()
        (joined,) = late.told("joined")
        assert joined["donors"] == 3
        for member in members.members.values():
            assert not member.told("rejected"), "states that members name of each other are what they hold"
            assert member.told("round")[-1]["members"] == 4
        return [member.eval_loss for member in members.members.values()]


@pytest.mark.slow
async def test_files_change_no_bit(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    filed = await joined_late(tmp_path / "filed")
    assert files.made > 4 * ROUNDS, "payloads, initial models and snapshots"
    assert not files.left
    monkeypatch.setattr(sim_swarm, "NodeContext", NodeContext)
    assert await joined_late(tmp_path / "held") == filed


@pytest.mark.thorough
async def test_estimates_on_disk_change_no_bit(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, files: Files
) -> None:
    """Each machine chooses for itself; neighbours leave and come, a node joins late, and a disk may be full."""
    held = await joined_late(tmp_path / "held")
    made = files.made
    node = {"checkpoint_every": 2, "estimates_on": "disk"}
    assert await joined_late(tmp_path / "disk", node=node) == held
    assert files.made - made >= made + 4 * 3, "an estimate of each neighbour"
    assert not files.left
    files.full = True
    assert await joined_late(tmp_path / "full", node=node) == held


@pytest.mark.slow
async def test_a_full_disk_is_told_once(tmp_path: Path, autojump_clock: trio.testing.MockClock, files: Files) -> None:
    files.full = True
    async with swarm(tmp_path) as members:
        for number in range(3):
            await members.start(f"n{number}", wait_for=2, node={"estimates_on": "disk"})
        await members.finished()
        for member in members.members.values():
            (told,) = [warning for warning in member.told("warning") if "neighbours' models" in warning["message"]]
            assert told["message"] == (
                "the disk does not take the neighbours' models (No space left on device): they are held in memory"
            )
            assert member.told("round")[-1]["members"] == 3


@pytest.mark.thorough
@pytest.mark.slow
async def test_a_swarm_with_estimates_in_bf16_learns_as_well(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, files: Files
) -> None:
    fp32 = await joined_late(tmp_path / "fp32")
    bf16 = await joined_late(tmp_path / "bf16", sync={"estimates": "bf16"})
    assert bf16 != fp32
    for one, other in zip(bf16, fp32, strict=True):
        assert one == pytest.approx(other, rel=0.02)


@pytest.mark.slow
async def test_a_node_comes_back_from_its_checkpoint_with_estimates_in_bf16_and_on_disk(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, files: Files
) -> None:
    shared: dict[str, Any] = {
        "train": {"rounds": ROUNDS},
        "node": {"checkpoint_every": 1, "estimates_on": "disk"},
        "sync": {"estimates": "bf16"},
    }
    async with swarm(tmp_path) as members:
        for number in range(3):
            await members.start(f"n{number}", wait_for=2, **shared)
        await trio.sleep(6 * 5 * STEP_SECONDS)
        members.members["n2"].kill()
        await members.finished("n2")
        back = await members.start("n2", wait_for=2, **shared)
        assert back.resumed
        await members.finished()
        assert not any(member.told("rejected") for member in members.members.values())
        assert back.told("round")[-1]["members"] == 3


def run_of(sections: dict[str, Any]) -> RunId:
    return run_info(from_raw({"task": {"name": "digits"}} | sections), b"f" * 32, torch.zeros(4)).run_id


def test_members_whose_optimizer_moves_another_anchor_are_in_another_run() -> None:
    for strategy, apart in (("mime", True), ("allreduce", False)):
        adamw, named, sgd = (
            run_of({"sync": {"strategy": strategy}} | train)
            for train in ({}, {"train": {"optimizer": "adamw"}}, {"train": {"optimizer": "sgd"}})
        )
        assert adamw == named
        assert (sgd != adamw) is apart, strategy


def test_members_with_other_estimates_are_in_another_run() -> None:
    fp32, named, bf16 = (
        run_of(sync) for sync in ({}, {"sync": {"estimates": "fp32"}}, {"sync": {"estimates": "bf16"}})
    )
    assert fp32 == named, "and in the same as members of older releases"
    assert bf16 != fp32
