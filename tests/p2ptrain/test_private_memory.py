"""Private steps where memory runs out: one draw, one noise and one payment, with half as many examples at a time."""

import pytest
import torch

from p2ptrain import privacy
from p2ptrain.privacy.base import Release
from p2ptrain.privacy.secret_random import SecretRandom
from p2ptrain.tasks.base import Shard
from p2ptrain.tasks.calling import TaskFaultError
from p2ptrain.tasks.digits import Digits
from p2ptrain.training import TrainConfig, Trainer, private_gradient
from p2ptrain.training.private_training import PrivateTraining
from tests.seeded_bytes import seeded_bytes

FULL = "CUDA out of memory. Tried to allocate 20.50 MiB."
ALL = 1 << 20


class Small(Digits):
    """The digits, in a memory for so many examples at a time; the first `spared` chunks fit in any case."""

    def __init__(self, room: int = ALL, spared: int = 0) -> None:
        super().__init__()
        self.room, self.spared = room, spared
        self.chunks: list[list[int]] = []
        self.broken, self.blurred = False, 0.0

    def examples_at(self, shard, numbers):
        self.chunks.append(list(numbers))
        images, labels = super().examples_at(shard, numbers)
        return images + self.blurred * torch.rand(len(numbers), 1), labels

    def loss(self, model, batch):
        if self.broken:
            raise ValueError("no")
        if torch.is_grad_enabled() and len(self.chunks) > self.spared and len(self.chunks[-1]) > self.room:
            raise torch.OutOfMemoryError(FULL)
        return super().loss(model, batch)


class Counted(SecretRandom):
    """Counts what is drawn from it."""

    def __init__(self) -> None:
        super().__init__(seeded_bytes(3))
        self.draws, self.noises = 0, 0

    def drawn(self, count, rate):
        self.draws += 1
        return super().drawn(count, rate)

    def normals(self, count):
        self.noises += 1
        return super().normals(count)


class Spent:
    """What has been paid for."""

    def __init__(self) -> None:
        self.releases: list[Release] = []

    def __call__(self, release: Release) -> None:
        self.releases.append(release)


def trainer(
    task: Digits, *, chunk: int | None = None, source: SecretRandom | None = None, spend: Spent | None = None
) -> Trainer:
    protection = PrivateTraining(
        privatizer=privacy.get("example", noise=1.0, clip=1.0),
        chunk=chunk,
        source=source or Counted(),
        spend=spend or Spent(),
    )
    config = TrainConfig(device="cpu", warmup_steps=0, batch_size=16)
    return Trainer(task, config, Shard(index=0, count=8), privacy=protection)


@pytest.mark.parametrize("room", [1, 4])
def test_a_chunk_that_does_not_fit_is_halved_and_the_step_is_the_same_to_the_bit(room: int) -> None:
    source, spent = Counted(), Spent()
    task = Small(room, spared=1)
    uncut = Small()
    task.blurred = uncut.blurred = 0.1  # by torch's generator, as augmentations are
    halving, reference = trainer(task, source=source, spend=spent), trainer(uncut, chunk=room)
    for node in (halving, reference):
        torch.manual_seed(1)
        node.ask_ahead(3)
        for _ in range(3):
            node.step()
    assert halving.micro_batch == room
    assert torch.equal(halving.vector(), reference.vector())
    assert max(len(chunk) for chunk in task.chunks[-4:]) <= room
    assert (source.draws, source.noises) == (3, 3), "the same draw, and noise on the whole sum alone"
    paid = [release.count for release in spent.releases]
    fine = Spent()
    trainer(Small(), spend=fine).ask_ahead(3)
    assert paid == [release.count for release in fine.releases]


def test_what_was_summed_before_memory_ran_out_does_not_count_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    halving, reference = trainer(Small(), chunk=8), trainer(Small(), chunk=4)
    add, failures = private_gradient.add_weighted_, [False, True]

    def full_at_the_second(sum_d, *rest):
        add(sum_d, *rest)
        if failures and failures.pop(0):
            raise torch.OutOfMemoryError(FULL)

    reference.ask_ahead(1)
    reference.step()
    monkeypatch.setattr(private_gradient, "add_weighted_", full_at_the_second)
    halving.ask_ahead(1)
    halving.step()
    assert not failures
    assert halving.micro_batch == 4
    assert torch.equal(halving.vector(), reference.vector())


def test_one_example_that_does_not_fit_is_said_in_a_line() -> None:
    node = trainer(Small(0, spared=1))
    node.ask_ahead(1)
    with pytest.raises(TaskFaultError, match=r"out of memory: 21.5 MB more.*, with one example at a time"):
        node.step()


def test_what_is_no_want_of_memory_is_raised() -> None:
    task = Small()
    node = trainer(task)
    node.ask_ahead(1)
    task.broken = True
    with pytest.raises(TaskFaultError, match="ValueError: no"):
        node.step()
    assert node.micro_batch is None


def test_what_is_told_does_not_depend_on_how_many_were_drawn() -> None:
    """The number of examples that are allowed is halved, not that of a draw."""
    node = trainer(Small(10, spared=1))
    node.ask_ahead(1)
    node.step()
    assert node.micro_batch == 8, "of 32 at most"
