"""What a task is: a model, a loss and data, and nothing about networks. `--task module:factory` gives one of these.

Data is addressed, not iterated: `train_batch(step, ...)` is a function of its arguments alone, so that a node that
resumes at step s sees what it would have seen, with no iterator state in the checkpoint.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

import torch
from torch import nn

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

Batch: TypeAlias = Any
"""Tensors on the CPU, which the trainer moves to the device: (inputs, targets), or dicts, lists, tuples and dataclasses
of tensors in any nesting. Only the task looks into it."""


class TaskError(ValueError):
    """A mistake of the user's: missing data, an option that does not fit. The message says what to do."""


@dataclass(frozen=True, kw_only=True)
class Shard:
    """Which part of the data a node trains on: part `index` of `count`."""

    index: int = 0
    count: int = 1


@runtime_checkable
class Task(Protocol):
    """Something to learn."""

    name: str
    metric: str
    """What the eval loss is measured in, for people ("nats per byte")."""

    def build_model(self) -> nn.Module:
        """Return the model, on the CPU in fp32, initialised from torch's global RNG (the caller has seeded it)."""

    def train_batch(self, step: int, *, seed: int, shard: Shard, size: int) -> Batch:
        """`size` examples of the shard; the same arguments give the same batch."""

    def eval_batches(self, limit: int) -> list[Batch]:
        """Batches of the held-out split, at most `limit` examples in all; the same on every node, never trained on."""

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """Mean loss over the batch's predictions, a scalar. Where memory runs out it is computed over parts of the
        batch, which are weighed by their `tokens`; a task whose loss is no such mean says `whole_batches = True`."""

    def tokens(self, batch: Batch) -> int:
        """Return how many predictions the batch holds (tokens for text, examples for images)."""


@runtime_checkable
class Suited(Protocol):
    """A task that knows what suits it."""

    optimizer_options: Mapping[str, Mapping[str, object]]
    """By inner optimizer, options for where the user has set none."""


def optimizer_options(task: Task) -> Mapping[str, Mapping[str, object]]:
    """Return what suits this task, by inner optimizer; a task that is made of another passes it on."""
    return task.optimizer_options if isinstance(task, Suited) else {}


def keeps_dtypes(task: Task) -> bool:
    """Return whether the task says so (`keeps_dtypes = True`): its model is then not made fp32. It draws in fp64 and
    rounds by itself, and what is frozen has the type that it wants; what is trained is fp32."""
    return getattr(task, "keeps_dtypes", False) is True


def whole_batches(task: Task) -> bool:
    """Return whether the task says so (`whole_batches = True`): its loss compares the examples of a batch, which is
    then never cut."""
    return getattr(task, "whole_batches", False) is True


@runtime_checkable
class Measured(Protocol):
    """A task with metrics of its own, evaluated with the loss and shown wherever that is (p2ptrain/tasks/metrics.py).
    It may also have `units`, a dict of metrics' names to units, such as {"accuracy": "%"}."""

    def metrics(self, model: nn.Module, batch: Batch) -> Mapping[str, float]:
        """Of a held-out batch: each a mean over its predictions. At most 16, with names of 40 characters at most."""


@runtime_checkable
class Derived(Protocol):
    """A task with metrics that follow from its held-out loss, so that nothing is computed twice for them."""

    def derived_metrics(self, loss: float) -> Mapping[str, float]:
        """Return, by name, what a mean held-out loss comes to."""


OWN_SHARD = "own shard"
"""The metric of the loss on what a shard holds out for itself."""


@runtime_checkable
class HoldsOutOwn(Protocol):
    """A task whose shards hold something out for themselves, beside what is held out for all. The loss on it is shown
    as the metric OWN_SHARD."""

    def shard_eval_batches(self, shard: Shard, limit: int) -> list[Batch]:
        """Batches that this shard does not train on, at most `limit` examples in all; none where it has too few."""


@runtime_checkable
class HasExamples(Protocol):
    """A task whose examples to train on can be counted and named, for differential privacy of examples
    (`privacy.privatizer = "example"`). What is protected is one of these: no byte of the data is in two."""

    def example_count(self, shard: Shard) -> int:
        """Return how many examples the shard has. All of them count as known: their number is told."""

    def examples_at(self, shard: Shard, numbers: Sequence[int]) -> Batch:
        """Return the examples with these numbers, from 0 to `example_count`, as a batch like those of `train_batch`:
        tensors whose first dimension is that of the examples, in tuples, lists or dicts. A function of its arguments,
        and each example one of its number alone."""


@runtime_checkable
class Classifies(Task, HasExamples, Protocol):
    """A task that tells classes of real-valued inputs apart, for a newcomer's warm-up (`[warm_up]`). Its batches are
    pairs: inputs, numbers (n, ...) all of one shape, and labels, int64 (n,)."""

    classes: int
    """How many classes there are: labels are below it."""
    input_range: tuple[float, float]
    """The least and the largest value of an input, known without looking at the data. Others are cut to it."""


@runtime_checkable
class Identified(Protocol):
    """A task with more that members must have alike than the shapes of what is trained: frozen weights, a vocabulary.
    A member with another identity is in another run, and is refused."""

    def identity(self, model: nn.Module) -> bytes:
        """Return a digest of it. `model` is what `build_model` returned."""


@runtime_checkable
class HasPublicBatch(Protocol):
    """A task with a batch that is everybody's, for members whose models differ in shape: they share what these say of
    it, and no parameters (`train.shares = "logits"`). No node trains on its targets."""

    def public_batch(self) -> Batch:
        """Return it: inputs and targets, the same on every node and at every call. Of the targets their shape counts,
        and which of them are below 0: these predictions do not count. TaskError where there is none."""


@runtime_checkable
class TensorParallel(Protocol):
    """A task whose model several ranks of a site can compute together, matrix by matrix (`site.tensor`)."""

    def share_tensors(self, model: nn.Module, mesh: "DeviceMesh") -> None:
        """Share what `build_model` returned out over the ranks of `mesh` (one dimension), in place: parameters become
        DTensors, in the order of before, and with the values of before in each's row-major order. Inputs are the whole
        batch in every rank, and so are the outputs. TaskError where that cannot be."""


@runtime_checkable
class PipelineParallel(Protocol):
    """A task whose model several ranks of a site can compute one after another, stage by stage (`site.pipeline`). Its
    batches are pairs of tensors, inputs and targets. `loss` and `metrics` call the model once, with the inputs alone:
    in place of the model they are given a module that returns what the last stage has computed."""

    def cut_stages(self, model: nn.Module, stages: int) -> Sequence[nn.Module]:
        """Return so many modules that compute what `model` computes, each from what the one before has returned: one
        tensor, whose first dimension is that of the examples. They are made of the model's own modules; each parameter
        is in one of them, or in several, which then train it together. `model` is what `build_model` returned, or
        `share_tensors` made of it. TaskError where that cannot be."""


OPTIONAL = (
    *("keeps_dtypes", "whole_batches", "derived_metrics", "shard_eval_batches", "identity", "public_batch"),
    *("share_tensors", "cut_stages"),
)
"""What a task need not have, beside what is asked for by name: one that is made of another passes it on."""


def identity_of(task: Task, model: nn.Module) -> bytes:
    """Return what members must have alike beside the model's shapes; empty for most tasks."""
    return task.identity(model) if isinstance(task, Identified) else b""


@runtime_checkable
class Pretrained(Protocol):
    """A task whose models are those of transformers. `p2ptrain export --to hf` asks for it."""

    def save(self, model: nn.Module, folder: Path, *, merged: bool) -> None:
        """Write what `from_pretrained` opens; `merged`: adapters added to the base model, whose weights change in
        place. TaskError where that cannot be."""

    def without_adapters(self, model: nn.Module) -> nn.Module:
        """Return the same function as one plain model, the adapters added to the base model in place."""


@runtime_checkable
class Generative(Protocol):
    """A task whose model can speak. `p2ptrain generate` asks for it."""

    def generate(self, model: nn.Module, prompt: str, *, length: int, temperature: float, seed: int) -> str:
        """`prompt` and what the model makes of it."""
