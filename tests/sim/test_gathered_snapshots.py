"""A swarm whose snapshots come late learns what one learns whose snapshots are there at once."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from queued_devices import QueuedDevice
from sim_swarm import swarm

from node.training.node import Node
from p2ptrain.training import Trainer
from p2ptrain.training.device_copies import Gathering, StagedCopies, at_once


def trainer_of(node: Node) -> Trainer:
    assert isinstance(node.inner.trainer, Trainer)
    return node.inner.trainer


def at_the_snapshot(node: Node) -> None:
    """All of it is copied at once, and the host is given it later."""
    trainer_of(node).flat.copies = StagedCopies(at_once(torch.device("cpu")), staged=1 << 24)


def when_waited_for(node: Node) -> None:
    """Nothing is copied before somebody waits, and two pages at a time."""
    device = QueuedDevice(pace=0, computes_at_once=True)
    trainer_of(node).flat.copies = StagedCopies(device.queues(), staged=1 << 12)


class Read:
    """A gathering that only its reader can end."""

    ended = False

    def __init__(self, values_d: torch.Tensor) -> None:
        self._values_d, self.found_d = values_d, torch.full_like(values_d, torch.nan)

    def finish(self) -> None:
        self.found_d.copy_(self._values_d)


def by_its_reader(node: Node) -> None:
    """Nothing is there before the reader waits, whatever training does."""

    def snapshot() -> tuple[torch.Tensor, Gathering]:
        gathering = Read(trainer_of(node).vector())
        return gathering.found_d, gathering

    trainer_of(node).snapshot = snapshot  # type: ignore[method-assign]


async def models_of(folder: Path, change: Callable[[Node], None]) -> list[torch.Tensor]:
    async with swarm(folder) as members:
        for name in ("a", "b"):
            train = {"rounds": 3, "inner_steps": 3, "eval_every": 3}
            await members.start(name, wait_for=1, change=change, train=train, node={"checkpoint_every": 2})
        await members.finished()
        return [trainer_of(member.node).vector() for member in members.members.values()]


@pytest.mark.thorough  # test_device_copies.py has each of its parts
async def test_snapshots_that_come_late_change_nothing(tmp_path: Path, autojump_clock: object) -> None:
    found = {}
    for change in (at_the_snapshot, when_waited_for, by_its_reader):
        folder = tmp_path / change.__name__
        folder.mkdir()
        found[folder.name] = await models_of(folder, change)
    for models in found.values():
        assert all(map(torch.equal, models, found["at_the_snapshot"]))
