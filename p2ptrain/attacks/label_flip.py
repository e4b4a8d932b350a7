"""Label flipping: the liar learns the wrong answers, and publishes honestly what it learned."""

import torch
from torch import nn

from p2ptrain.tasks.base import OPTIONAL, Batch, Shard, Task, TaskError, optimizer_options
from p2ptrain.tasks.batches import pair_of
from p2ptrain.tasks.metrics import metric_units, own_metrics

LOOKED_AT = 4096
"""Held-out examples in which the classes are counted."""


class LabelFlip:
    """Trains on label C - 1 - y where y is right, so that classes trade places in pairs (9 - y for digits, as in the
    experiments of He, Karimireddy and Jaggi, 2202.01545).

    What travels is a well-trained model of another task: no bound on size or shape finds it. `classes` is C; None: one
    more than the largest label among the held-out ones (for text: bytes trade places within the alphabet in use).
    Labels below zero mean "not counted", and stay.
    """

    name = "label_flip"

    def __init__(self, *, classes: int | None = None) -> None:
        if classes is not None and classes < 1:
            raise ValueError(f"label_flip: classes must be at least 1, not {classes}")
        self.classes = classes

    def poison(self, task: Task) -> Task:
        """Return `task` with other training batches. TaskError when the targets are no class labels."""
        return Mislabelled(task, self.classes or count_classes(task))


def flipped(labels: torch.Tensor, classes: int) -> torch.Tensor:
    """C - 1 - y for every label y >= 0 (int64, any shape); one beyond the last wraps around."""
    return torch.where(labels < 0, labels, torch.remainder(classes - 1 - labels, classes))


def count_classes(task: Task) -> int:
    """Return one more than the largest held-out label. TaskError when these are no class labels, or there are none."""
    targets = [labels for batch in task.eval_batches(LOOKED_AT) if (labels := _pair(task, batch)[1]).numel()]
    if not targets or any(each.is_floating_point() for each in targets):
        raise TaskError(f"label_flip needs class labels, and the task {task.name} has none: use another attack")
    return max(1, *(int(each.max()) + 1 for each in targets))


def _pair(task: Task, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    pair = pair_of(batch)
    if pair is None:
        raise TaskError(f"label_flip needs batches of inputs and labels, and those of {task.name} are of another form")
    return pair


class Mislabelled:
    """A task with the labels of its training batches flipped, and all else as it was."""

    def __init__(self, task: Task, classes: int) -> None:
        self.name, self.metric = task.name, task.metric
        self.optimizer_options = optimizer_options(task)
        self.metrics, self.units = own_metrics(task), metric_units(task)
        self._task, self._classes = task, classes
        for optional in OPTIONAL:
            if hasattr(task, optional):
                setattr(self, optional, getattr(task, optional))

    def build_model(self) -> nn.Module:
        """As the true task."""
        return self._task.build_model()

    def train_batch(self, step: int, *, seed: int, shard: Shard, size: int) -> Batch:
        """Return the true task's inputs, with flipped labels."""
        inputs, labels = _pair(self._task, self._task.train_batch(step, seed=seed, shard=shard, size=size))
        return inputs, flipped(labels, self._classes)

    def eval_batches(self, limit: int) -> list[Batch]:
        """As the true task."""
        return self._task.eval_batches(limit)

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """As the true task."""
        return self._task.loss(model, batch)

    def tokens(self, batch: Batch) -> int:
        """As the true task."""
        return self._task.tokens(batch)
