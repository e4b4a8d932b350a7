"""What members share whose models differ in shape: what each says of one public batch.

The batch is known by its address, a digest of its numbers. Members with another batch are in another run.
"""

import hashlib
from typing import Final

import numpy as np
import torch
from torch import nn

from p2ptrain.tasks.base import Batch, HasPublicBatch, Shard, Task, TaskError, optimizer_options, whole_batches
from p2ptrain.tasks.batches import pair_of
from p2ptrain.tasks.calling import calling
from p2ptrain.training.distillation import distillation_loss
from p2ptrain.training.heard_model import HeardModel

ADDRESS_BYTES: Final = 32

LARGEST_LOGIT: Final = 16.0
"""Bound of a shared logit, after the mean over classes is taken off: e^-16 is one in nine million, and no model of 8
bits tells less. It bounds what one honest outlier costs all others in a codec's scale."""

TOLD_PREDICTIONS: Final = 256
"""In a batch whose logits are computed: as many as in a small evaluation batch."""


class PublicBatch:
    """A task's public batch, cut into parts that fit. TaskError where the task has none, or none of this form."""

    def __init__(self, task: Task) -> None:
        if not isinstance(task, HasPublicBatch):
            raise TaskError(f"train.shares=logits: the task {task.name} has no public batch (public_batch)")
        with calling(task, "public_batch"):
            pair = pair_of(task.public_batch())
        if pair is None or not len(pair[0]) or len(pair[0]) != len(pair[1]) or pair[1].is_floating_point():
            raise TaskError(f"train.shares=logits: the public batch of {task.name} is no inputs with targets")
        self.inputs, self.targets = pair
        self.counted = (self.targets >= 0).flatten()
        """bool (n,): which predictions count."""

    @property
    def examples(self) -> int:
        """How many examples it has."""
        return len(self.inputs)

    @property
    def predictions(self) -> int:
        """How many predictions n it has, those that do not count included."""
        return self.targets.numel()

    @property
    def address(self) -> bytes:
        """32 bytes over shapes, types and numbers of the inputs, and over which predictions count."""
        digest = hashlib.blake2b(digest_size=ADDRESS_BYTES)
        for tensor in (self.inputs, self.counted.view(self.targets.shape)):
            digest.update(f"{tuple(tensor.shape)}{tensor.dtype}|".encode())
            digest.update(np.ascontiguousarray(tensor.numpy()).tobytes())
        return digest.digest()

    def parts(self) -> list[Batch]:
        """Return it in parts of about TOLD_PREDICTIONS predictions."""
        size = max(1, TOLD_PREDICTIONS * self.examples // self.predictions)
        return [
            (self.inputs[at : at + size], self.targets[at : at + size].clamp_min(0))
            for at in range(0, self.examples, size)
        ]

    def rows(self, examples: torch.Tensor) -> torch.Tensor:
        """Return which of the n predictions belong to these examples, in their order: int64."""
        each = self.predictions // self.examples
        return (examples[:, None] * each + torch.arange(each)).flatten()


def shared_form(logits_nc: torch.Tensor) -> torch.Tensor:
    """Return logits (n, classes) as they are shared: without their mean over classes, which no softmax sees and in
    which models differ by chance, and within LARGEST_LOGIT. A new tensor."""
    return (logits_nc - logits_nc.mean(-1, keepdim=True)).clamp_(-LARGEST_LOGIT, LARGEST_LOGIT)


class ConsensusTask:
    """A task whose training batches are public examples with what all say of them. Held-out data are the task's."""

    def __init__(self, task: Task, public: PublicBatch, temperature: float) -> None:
        self._task, self._public, self._temperature = task, public, temperature
        self.name, self.metric = task.name, task.metric
        self.optimizer_options = optimizer_options(task)
        self.whole_batches = whole_batches(task)
        self.consensus_nc = torch.empty(0, 0, dtype=torch.float32)
        """What all say (n, classes). Set before the first step."""

    def build_model(self) -> nn.Module:
        """Return the task's model."""
        return self._task.build_model()

    def train_batch(self, step: int, *, seed: int, shard: Shard, size: int) -> Batch:
        """Return `size` public examples, drawn with replacement: inputs, targets and logits (size, ..., classes)."""
        drawn = np.random.default_rng([seed, step]).integers(0, self._public.examples, size)
        chosen = torch.from_numpy(drawn)
        targets = self._public.targets[chosen]
        logits = self.consensus_nc[self._public.rows(chosen)].view(*targets.shape, -1)
        return self._public.inputs[chosen], targets, logits

    def eval_batches(self, limit: int) -> list[Batch]:
        """Return the task's held-out batches."""
        return self._task.eval_batches(limit)

    def tokens(self, batch: Batch) -> int:
        """Return how many predictions the batch has."""
        return int(batch[1].numel())

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """Return how far the model is from what all say (distillation_loss), or the task's loss of a held-out batch."""
        if len(batch) == 2:
            return self._task.loss(model, batch)
        inputs, targets, logits = batch
        heard = HeardModel(model)
        self._task.loss(heard, (inputs, targets.clamp_min(0)))  # for its call of the model: targets tell nothing
        return distillation_loss(heard.logits, logits, targets >= 0, self._temperature)
