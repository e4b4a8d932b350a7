"""Memory that runs out makes a step slower, and changes nothing else about it."""

import random
import threading
from collections import UserDict
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from p2ptrain.tasks import TaskFaultError
from p2ptrain.tasks.base import Batch, Shard, Task
from p2ptrain.tasks.batches import examples_in, pieces
from p2ptrain.tasks.digits import Digits
from p2ptrain.training import TrainConfig, Trainer
from p2ptrain.training.machine import Machine
from p2ptrain.training.model import twin_of
from p2ptrain.training.preflight import preflight


class Small(Digits):
    """Digits on a device with room for so many examples."""

    def __init__(self, room: int, *, whole_batches: bool = False, dropout: float = 0.0) -> None:
        super().__init__()
        self.room, self.whole_batches, self.dropout = room, whole_batches, dropout
        self.seen: list[int] = []
        self.draws: list[float] = []

    def loss(self, model: torch.nn.Module, batch: Batch) -> torch.Tensor:
        inputs, labels = batch
        if not torch.is_grad_enabled():
            return super().loss(model, batch)
        self.seen.append(len(labels))
        self.draws.append(float(torch.rand(())))
        loss = super().loss(model, (inputs, labels))
        if len(labels) > self.room:
            loss.backward()  # some of the gradient is there already when memory runs out
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.50 MiB.")
        return loss


class Uneven(Small):
    """A target below 0 does not count, as a prompt's do not."""

    def train_batch(self, step: int, *, seed: int, shard: Shard, size: int) -> Batch:
        inputs, labels = super().train_batch(step, seed=seed, shard=shard, size=size)
        labels = labels.clone()
        labels[: size // 2 + 1] = -100  # an odd number: pieces have unlike numbers of predictions
        return inputs, labels

    def tokens(self, batch: Batch) -> int:
        return int((batch[1] >= 0).sum())


def trainer_of(task: Task, **changed: Any) -> Trainer:
    return Trainer(task, TrainConfig(batch_size=16, warmup_steps=0, device="cpu", **changed), Shard())


@pytest.mark.parametrize("kind", [Small, Uneven])
@pytest.mark.parametrize("accumulation", [1, 3])
@pytest.mark.parametrize("room", [1, 3, 8])
def test_the_gradient_is_the_whole_batchs(kind: type[Small], accumulation: int, room: int) -> None:
    whole = trainer_of(kind(16), grad_accumulation=accumulation)
    cut = trainer_of(kind(room), grad_accumulation=accumulation)
    (loss, grad_d), (same_loss, same_d) = whole.gradient(), cut.gradient()
    assert cut.micro_batch == {1: 1, 3: 2, 8: 8}[room]
    assert whole.micro_batch is None
    assert same_loss == pytest.approx(loss, rel=1e-5)
    torch.testing.assert_close(same_d, grad_d, rtol=1e-4, atol=1e-6)
    assert whole.tokens == cut.tokens


def test_memory_is_given_back_before_each_new_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    freed: list[int] = []
    task = Small(4)
    monkeypatch.setattr(Machine, "free", lambda machine: freed.append(task.seen[-1]))
    trainer_of(task).step()
    assert freed == [16, 8]


def test_steps_go_on_with_what_has_fitted() -> None:
    task = Small(4)
    whole, cut = trainer_of(Small(16)), trainer_of(task)
    losses = [(whole.step(), cut.step()) for _ in range(3)]
    assert task.seen == [16, 8, 4, 4, 4, 4, *[4] * 8]  # two attempts in the first step, none later
    for loss, same in losses:
        assert same == pytest.approx(loss, rel=1e-4)
    torch.testing.assert_close(cut.vector(), whole.vector(), rtol=1e-3, atol=1e-5)
    assert (cut.global_step, cut.skipped_steps) == (whole.global_step, 0)


def test_an_attempt_that_failed_leaves_the_random_numbers_alone() -> None:
    task = Small(8)
    trainer = trainer_of(task)
    torch.manual_seed(5)
    trainer.step()
    assert task.seen == [16, 8, 8]
    assert task.draws[1] == task.draws[0]  # the step began again from there


def test_where_one_example_does_not_fit_it_is_said_what_to_do() -> None:
    task = Small(0)
    with pytest.raises(TaskFaultError, match=r"21\.5 MB") as caught:
        trainer_of(task).step()
    assert "with one example at a time" in caught.value.message
    assert "smaller model or shorter examples" in caught.value.hint
    assert task.seen == [16, 8, 4, 2, 1]


def test_a_task_may_keep_its_batches_whole() -> None:
    with pytest.raises(TaskFaultError, match=r"lower train\.batch_size"):
        trainer_of(Small(8, whole_batches=True)).step()


def test_no_other_error_is_tried_again() -> None:
    class Broken(Small):
        def loss(self, model: torch.nn.Module, batch: Batch) -> torch.Tensor:
            self.seen.append(len(batch[1]))
            raise RuntimeError("shapes cannot be multiplied")

    task = Broken(16)
    with pytest.raises(TaskFaultError, match="cannot be multiplied"):
        trainer_of(task).step()
    assert task.seen == [16]


def test_a_trial_before_the_run_takes_smaller_batches_too() -> None:
    task = Small(4)
    small = preflight(task, TrainConfig(batch_size=16, device="cpu"), Shard())
    whole = preflight(Small(16), TrainConfig(batch_size=16, device="cpu"), Shard())
    assert task.seen == [16, 8, 4]
    assert small.kept_bytes < whole.kept_bytes / 2


@pytest.fixture
def own_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU counts as a device with memory of its own."""
    monkeypatch.setattr(Machine, "has_own_memory", True)


@pytest.mark.parametrize(
    ("batch", "room", "tried", "size"),
    [
        (16, 16, [16], None),
        (12, 100, [12], None),
        (12, 11, [12, 1, 2, 4, 8], 8),
        (16, 9, [16, 1, 2, 4, 8], 8),
        (16, 5, [16, 1, 2, 4, 8], 4),
        (16, 1, [16, 1, 2], 1),
        (1, 1, [1], None),
    ],
)
def test_what_fits_is_searched_for_by_doubling_where_a_whole_batch_does_not(
    own_memory: None, batch: int, room: int, tried: list[int], size: int | None
) -> None:
    task, whole = Small(room), Small(batch)
    config = TrainConfig(batch_size=batch, warmup_steps=0, device="cpu")
    cut, reference = Trainer(task, config, Shard()), Trainer(whole, config, Shard())
    reference._searches = False
    losses = [(reference.step(), cut.step()) for _ in range(2)]
    assert cut.micro_batch == size
    assert task.seen[: len(tried)] == tried
    assert all(seen <= (size or batch) for seen in task.seen[len(tried) :]), "memory has run out twice at most"
    for loss, same in losses:
        assert same == pytest.approx(loss, rel=1e-4)
    torch.testing.assert_close(cut.vector(), reference.vector(), rtol=1e-3, atol=1e-5)
    assert cut.tokens == reference.tokens


def test_memory_that_runs_out_later_keeps_it_below_for_good(own_memory: None) -> None:
    task = Small(8)
    trainer = trainer_of(task)
    trainer.step()
    assert trainer.micro_batch == 8
    task.room, task.seen = 5, []  # another program takes some of the device's memory
    trainer.step()
    assert (trainer.micro_batch, task.seen) == (4, [8, 4, 4, 4, 4])
    task.room, task.seen = 16, []
    trainer.step()
    trainer.step()
    assert (trainer.micro_batch, task.seen) == (4, [4] * 8)


def test_where_one_example_does_not_fit_a_search_says_the_same(own_memory: None) -> None:
    task = Small(0)
    with pytest.raises(TaskFaultError, match="with one example at a time"):
        trainer_of(task).step()
    assert task.seen == [16, 1, 1]


class Carrying(torch.nn.Module):
    """Rebinds a buffer, changes one in place, registers one in its first call, and adds the outputs of the call before:
    of another number of examples these do not fit."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(64, 10)
        self.calls: torch.Tensor
        self.sums: torch.Tensor
        self.first: torch.Tensor
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("sums", torch.zeros(64))
        self.outputs: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.flatten(1)
        if not hasattr(self, "first"):
            self.register_buffer("first", x.mean(0))
        self.calls = self.calls + 1
        self.sums += x.sum(0)
        y: torch.Tensor = self.linear(x - self.first)
        y = y + 0.1 * self.outputs[-1] if self.outputs else y
        self.outputs.append(y.detach())
        return y


class Early(Small):
    """Small, where memory runs out before the model is called, and numbers of other generators are drawn."""

    def __init__(self, room: int) -> None:
        super().__init__(room)
        self.others: list[tuple[float, float]] = []

    def build_model(self) -> torch.nn.Module:
        return Carrying()

    def loss(self, model: torch.nn.Module, batch: Batch) -> torch.Tensor:
        if torch.is_grad_enabled() and len(batch[1]) > self.room:
            self.seen.append(len(batch[1]))
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.50 MiB.")
        self.others.append((random.random(), float(np.random.random())))
        return super().loss(model, batch)


@pytest.mark.parametrize("room", [16, 8])
def test_a_search_leaves_generators_and_the_model_alone(own_memory: None, room: int) -> None:
    searched, plain = Early(room), Early(room)
    searching, reference = trainer_of(searched), trainer_of(plain)
    reference._searches = False
    for trainer in (searching, reference):
        torch.manual_seed(3)
        random.seed(3)
        np.random.seed(3)
        trainer.step()
    pieces_of_step = 16 // room
    assert plain.seen[-pieces_of_step:] == searched.seen[-pieces_of_step:] == [room] * pieces_of_step
    # The model that carries its outputs refuses the second number that is tried.
    assert searched.seen[:-pieces_of_step] == {16: [], 8: [16, 1, 2, 4]}[room]
    assert searched.draws[-pieces_of_step:] == plain.draws[-pieces_of_step:]
    assert searched.others[-pieces_of_step:] == plain.others[-pieces_of_step:]
    assert dict(searching.model.named_buffers()).keys() == {"calls", "sums", "first"}
    for one, other in zip(searching.model.buffers(), reference.model.buffers(), strict=True):
        assert torch.equal(one, other)
    assert torch.equal(searching.vector(), reference.vector())


def test_a_search_has_no_parameters_or_gradients_of_its_own() -> None:
    trainer = trainer_of(Early(16))
    twin = twin_of(trainer.model)
    for one, other in zip(twin.parameters(), trainer.model.parameters(), strict=True):
        assert one is other
        assert one.grad is not None
    assert all(one is not other for one, other in zip(twin.buffers(), trainer.model.buffers(), strict=True))
    assert twin.training


def test_a_trial_before_the_run_leaves_the_model_alone_too(own_memory: None) -> None:
    task = Early(8)
    preflight(task, TrainConfig(batch_size=16, device="cpu", eval_examples=8), Shard())
    assert task.seen == [16, 1, 2, 4, 8]


def test_where_there_is_no_room_to_search_halves_are_taken(own_memory: None, monkeypatch: pytest.MonkeyPatch) -> None:
    task = Small(4)
    trainer = trainer_of(task)

    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 4.00 MiB.")

    monkeypatch.setattr("copy.deepcopy", full)
    trainer.step()
    assert (task.seen[:3], trainer.micro_batch) == ([16, 8, 4], 4)


def test_a_model_that_cannot_be_copied_is_not_searched_for(own_memory: None) -> None:
    task = Small(4)
    trainer = trainer_of(task)
    trainer.model.lock = threading.Lock()  # type: ignore[assignment]
    trainer.step()
    assert (task.seen[:3], trainer.micro_batch) == ([16, 8, 4], 4)


def test_a_model_that_wants_two_examples_is_not_searched_for(own_memory: None, monkeypatch: pytest.MonkeyPatch) -> None:
    norm = torch.nn.BatchNorm1d(64, track_running_stats=False)
    model = torch.nn.Sequential(torch.nn.Flatten(), norm, torch.nn.Linear(64, 10))
    monkeypatch.setattr(Small, "build_model", lambda task: model)
    task = Small(8)
    trainer_of(task).step()
    assert task.seen == [16, 1, 8, 8]


def test_nothing_is_searched_for_on_a_cpu_in_whole_batches_and_where_steps_are_compiled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trainer_of(plain := Small(16)).step()
    monkeypatch.setattr(Machine, "has_own_memory", True)
    trainer_of(whole := Small(16, whole_batches=True)).step()
    assert plain.seen == whole.seen == [16]
    assert not trainer_of(Small(16), compile=True)._searches


def test_a_trial_before_the_run_searches_too(own_memory: None) -> None:
    task = Small(5)
    found = preflight(task, TrainConfig(batch_size=16, device="cpu"), Shard())
    assert task.seen == [16, 1, 2, 4, 8, 4]
    assert found.untouched == ()


@dataclass
class Record:
    inputs: torch.Tensor
    name: str = "x"


class Encoding(UserDict[str, torch.Tensor]):
    def to(self, device: object) -> "Encoding":
        return self


@pytest.mark.parametrize(
    ("batch", "examples"),
    [
        ((torch.zeros(5, 2), torch.zeros(5)), 5),
        ({"x": [torch.zeros(5, 2)], "note": "text", "weight": 1.0}, 5),
        (Record(torch.zeros(5, 2)), 5),
        ((torch.zeros(5), Record(torch.zeros(5, 2))), 5),
        ((torch.zeros(5), torch.zeros(4)), None),
        ((torch.zeros(5), torch.tensor(1.0)), None),
        ((torch.zeros(5), Record(torch.zeros(4))), None),
        (Encoding(x=torch.zeros(5)), None),
        ({"note": "text"}, None),
    ],
)
def test_what_can_be_cut(batch: Batch, examples: int | None) -> None:
    assert examples_in(batch) == examples
    cut = pieces(batch, 2)
    assert [examples_in(each) for each in cut] == ([2, 2, 1] if examples else [None])


def test_pieces_are_parts_in_order_and_the_rest_stays() -> None:
    x = torch.arange(10).view(5, 2)
    cut = pieces({"of": [x, Record(x[:, 0])], "weight": 0.5}, 2)
    assert torch.equal(torch.cat([each["of"][0] for each in cut]), x)
    assert torch.equal(torch.cat([each["of"][1].inputs for each in cut]), x[:, 0])
    assert {(each["weight"], each["of"][1].name) for each in cut} == {(0.5, "x")}


class Narrow(Digits):
    """Digits on a device with room for so many held-out examples."""

    def __init__(self, room: int) -> None:
        super().__init__()
        self.room, self.seen = room, list[int]()

    def loss(self, model: torch.nn.Module, batch: Batch) -> torch.Tensor:
        if not torch.is_grad_enabled():
            self.seen.append(len(batch[1]))
            if len(batch[1]) > self.room:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.50 MiB.")
        return super().loss(model, batch)


def test_an_evaluation_that_does_not_fit_takes_fewer_examples_at_a_time() -> None:
    whole, cut = trainer_of(Narrow(10_000), eval_examples=50), trainer_of(Narrow(20), eval_examples=50)
    expected, measured = whole.measure(), cut.measure()
    assert measured.loss == pytest.approx(expected.loss, rel=1e-5)
    assert measured.own == pytest.approx(expected.own, rel=1e-5)
    assert cut.task.seen == [50, 25, 12, 12, 12, 12, 2]  # type: ignore[attr-defined]
    assert cut.evaluate() == pytest.approx(expected.loss, rel=1e-5)
    assert cut.micro_batch is None  # a step has room of its own


def test_a_trial_before_the_run_takes_held_out_examples_that_fit() -> None:
    task = Narrow(20)
    preflight(task, TrainConfig(batch_size=16, device="cpu", eval_examples=50), Shard())
    assert task.seen[-1] == 12
    with pytest.raises(TaskFaultError, match="with one example at a time"):
        preflight(Narrow(0), TrainConfig(batch_size=16, device="cpu", eval_examples=50), Shard())


def test_a_limit_does_not_raise_what_memory_has_left_room_for() -> None:
    """A watch of the budget may halve the number as it was when memory has just run out."""
    trainer = Trainer(Small(3), TrainConfig(device="cpu", warmup_steps=0, batch_size=16), Shard())
    trainer.step()
    assert trainer.micro_batch == 2
    trainer.take_at_a_time(8)
    assert trainer.micro_batch == 2
    trainer.take_at_a_time(1)
    assert trainer.micro_batch == 1
