"""A task is tried before a run is launched on it: the model is built twice, one batch goes forwards and backwards, and
the held-out examples are evaluated once. What a swarm would find out an hour later, or never say, is said now.

A model or a batch that is another one each time makes nodes refuse each other, for all must begin with the same model.
Only a task of the user's own is asked twice: that of the built-in ones is held by their tests.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn

from p2ptrain import faults
from p2ptrain.tasks.base import Batch, Shard, Task
from p2ptrain.tasks.batches import tensors_in
from p2ptrain.tasks.calling import TaskFaultError, calling, checked_loss, place_of_method
from p2ptrain.tasks.metrics import checked_metrics, own_metrics
from p2ptrain.training.flat import trainable
from p2ptrain.training.machine import Machine
from p2ptrain.training.micro_batch import MicroBatch
from p2ptrain.training.model import build_model
from p2ptrain.training.train_config import TrainConfig


@dataclass(frozen=True, kw_only=True)
class Preflight:
    """What the trial has shown."""

    parameters: int
    device: str
    loss: float
    """Of the first batch, before any step."""
    untouched: tuple[str, ...]
    """Parameters that the loss of that batch does not depend on: these stay as they are."""
    kept_bytes: int
    """What the forward pass of one batch, or of as much of it as memory takes, keeps for the backward pass,
    parameters not counted."""
    built_twice: bool

    def words(self) -> str:
        """In a line, what was seen to be well."""
        alike = "; model and batch come out the same twice" if self.built_twice else ""
        return f"one batch forwards and backwards on {self.device}: loss {self.loss:.4g}{alike}"

    def doubts(self) -> list[str]:
        """Return what its author should know, and need not mend."""
        if not self.untouched:
            return []
        names = ", ".join(self.untouched[:3]) + (", ..." if len(self.untouched) > 3 else "")
        message = f"the loss of the first batch does not depend on {len(self.untouched)} of the model's parameters"
        return [f"{message} ({names}): if they are not to be trained, say requires_grad_(False)"]


def preflight(task: Task, config: TrainConfig, shard: Shard, *, data_seed: int | None = None) -> Preflight:
    """Try `task` as the trainer would use it. TaskFaultError, with file and line where they are known, for what would
    end or silently spoil a run; TaskError where the device cannot be used. The global random numbers stay as they are.
    """
    machine = Machine.of(config)
    machine.pin_threads()
    seed = config.seed if data_seed is None else data_seed
    model = build_model(task, config.seed)
    theirs = not is_built_in(task)
    if theirs:
        _check_same_model(task, model, build_model(task, config.seed))
    batch = _batch(task, seed, shard, config.batch_size)
    if theirs:
        _check_same_batch(task, batch, _batch(task, seed, shard, config.batch_size))
    with _own_randomness(machine.device):
        model = model.to(machine.device)
        loss, kept = _fitting(task, model, batch, machine)
        untouched = tuple(name for name, parameter in trainable(model) if parameter.grad is None)
        model.zero_grad(set_to_none=True)
        _check_held_out(task, model.eval(), config.eval_examples, machine)
    return Preflight(
        parameters=sum(parameter.numel() for _, parameter in trainable(model)),
        device=str(machine.device),
        loss=loss,
        untouched=untouched,
        kept_bytes=kept,
        built_twice=theirs,
    )


def kept_by_a_batch(task: Task, model: nn.Module, machine: Machine, batch: Batch) -> int:
    """Return the bytes that the forward pass of a batch keeps for the backward pass, parameters not counted. Adds to
    the model's gradient; its buffers, such as means of batch normalization, and the global random numbers stay as they
    are. TaskFaultError as of `preflight`."""
    before = [buffer.clone() for buffer in model.buffers()]
    with _own_randomness(machine.device):
        try:
            return _forwards_and_backwards(task, model, batch, machine)[1]
        finally:
            for buffer, values in zip(model.buffers(), before, strict=True):
                buffer.copy_(values)


def is_built_in(task: Task) -> bool:
    """Return whether the task is one of this program's."""
    return type(task).__module__.partition(".")[0] in faults.OURS


def _check_same_model(task: Task, first: nn.Module, second: nn.Module) -> None:
    one, other = first.state_dict(), second.state_dict()
    if list(one) != list(other):
        raise _unlike(task, "the model has other parameters each time that it is built")
    for name, value in one.items():
        if isinstance(value, torch.Tensor) and not _same(value, other[name]):
            raise _unlike(task, f"{name} of the initial model is another one each time that it is built")


def _unlike(task: Task, what: str) -> TaskFaultError:
    place = place_of_method(task, "build_model")
    return TaskFaultError(
        f"{place}: {what}" if place else what,
        "all nodes must begin with the same model: draw random numbers from torch alone, which is seeded for "
        "build_model(), and take nothing from the clock, random, numpy or a set's order",
    )


def _check_same_batch(task: Task, first: Batch, second: Batch) -> None:
    one, other = tensors_in(first), tensors_in(second)
    names = [name for name, _ in one]
    differs = "its form" if names != [name for name, _ in other] else ""
    for (name, value), (_, again) in zip(one, other, strict=False):
        differs = differs or ("" if _same(value, again) else f"batch{name}")
    if differs:
        raise TaskFaultError(
            f"{_at(task, 'train_batch')}: another batch for the same arguments ({differs} differs)",
            "draw it from a generator that is seeded with seed, shard.index and step",
        )


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return (
        one.shape == other.shape
        and one.dtype == other.dtype
        and bool(torch.equal(one.nan_to_num(), other.nan_to_num()))
    )


def _batch(task: Task, seed: int, shard: Shard, size: int) -> Batch:
    with calling(task, "train_batch"):
        return task.train_batch(0, seed=seed, shard=shard, size=size)


def _fitting(task: Task, model: nn.Module, batch: Batch, machine: Machine) -> tuple[float, int]:
    """`_forwards_and_backwards` of as many examples as memory takes: the trainer takes no more at a time either."""
    micro = MicroBatch(task)

    def free() -> None:
        model.zero_grad(set_to_none=True)
        machine.free()

    def attempt(twin: nn.Module, piece: Batch) -> object:
        return _forwards_and_backwards(task, twin, piece, machine)

    return micro.fitting(
        batch,
        lambda: _forwards_and_backwards(task, model, micro.cut(batch)[0][0], machine),
        free,
        (lambda: micro.search(batch, model, attempt, free)) if machine.has_own_memory else None,
    )


def _forwards_and_backwards(task: Task, model: nn.Module, batch: Batch, machine: Machine) -> tuple[float, int]:
    """The loss, and the bytes that the forward pass keeps."""
    own = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}
    kept: dict[int, int] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with calling(task, "loss"):
        batch = machine.take(batch)
        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor), machine.autocast():
            loss = checked_loss(task, task.loss(model, batch), trains=True)
        loss.backward()  # type: ignore[no-untyped-call]
    _check_finite(task, float(loss.detach()), "the first batch")
    _check_count(task, batch)
    if all(parameter.grad is None for _, parameter in trainable(model)):
        raise TaskFaultError(
            f"{_at(task, 'loss')}: the loss does not depend on any parameter of the model",
            "compute it from what model(...) gives",
        )
    return float(loss.detach()), sum(kept.values())


def _check_held_out(task: Task, model: nn.Module, examples: int, machine: Machine) -> None:
    with calling(task, "eval_batches"):
        batches = list(task.eval_batches(examples))
    if not batches:
        raise TaskFaultError(f"{_at(task, 'eval_batches')}: there is no held-out batch", "return one at least")
    micro = MicroBatch(task)
    loss = micro.fitting(
        batches[0], lambda: _held_out_loss(task, model, micro.cut(batches[0])[0][0], machine), machine.free
    )
    _check_finite(task, loss, "the first held-out batch")
    _check_count(task, batches[0])
    metrics = own_metrics(task)
    if metrics is not None:
        with calling(task, "metrics"), torch.no_grad(), machine.autocast():
            checked_metrics(task, metrics(model, machine.take(micro.cut(batches[0])[0][0])))


def _held_out_loss(task: Task, model: nn.Module, batch: Batch, machine: Machine) -> float:
    with calling(task, "loss"), torch.no_grad(), machine.autocast():
        return float(checked_loss(task, task.loss(model, machine.take(batch)), trains=False))


def _check_count(task: Task, batch: Batch) -> None:
    with calling(task, "tokens"):
        count = int(task.tokens(batch))
    if count < 1:
        raise TaskFaultError(
            f"{_at(task, 'tokens')}: tokens() says that a batch has {count} predictions", "return 1 or more"
        )


def _check_finite(task: Task, loss: float, of: str) -> None:
    if not math.isfinite(loss):
        raise TaskFaultError(
            f"{_at(task, 'loss')}: the loss of {of} is {loss}, before any step",
            "look at the data (empty or huge values), and at logarithms and divisions in the loss",
        )


def _at(task: Task, method: str) -> str:
    return place_of_method(task, method) or f"the task {task.name}"


@contextmanager
def _own_randomness(device: torch.device) -> Iterator[None]:
    """Dropout draws numbers that the run would have drawn."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        yield
