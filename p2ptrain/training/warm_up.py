"""What a trainer's task gives for a newcomer's warm-up: sums of its own examples, and batches of synthetic ones."""

import math
from collections.abc import Iterator
from typing import Final

import torch

from p2ptrain.protocols import implements
from p2ptrain.tasks.base import Batch, Classifies, Shard, Task, TaskError
from p2ptrain.tasks.batches import pair_of
from p2ptrain.tasks.calling import calling
from p2ptrain.warm_up import ClassSums, SharedStatistics, SyntheticExamples
from p2ptrain.warm_up.class_statistics import MAX_CLASSES

AT_ONCE: Final = 1024
"""Examples that are read at a time."""

WARMED: Final = 0x3B
"""Turned in the data's seed for a warm-up: another order of the same shard than that of training."""


class WarmUpTask:
    """The task of one shard, as far as a warm-up asks. TaskError for one that does not tell classes of real-valued
    inputs apart."""

    def __init__(self, task: Task, shard: Shard) -> None:
        if not implements(task, Classifies):
            raise TaskError(
                f"[warm_up] wants a task that tells classes of real-valued inputs apart, and {task.name} does not say "
                "that it does: give it classes, input_range, example_count and examples_at (docs/how-to/cold-start.md)"
            )
        self._task, self._shard = task, shard
        self.classes, (self._low, self._high) = _declared(task)
        with calling(task, "example_count"):
            self.examples = task.example_count(shard)
        """Examples of the shard."""
        self._shape = self._read(range(min(1, self.examples)))[0].shape[1:]

    @property
    def coordinates(self) -> int:
        """Return how many numbers an input has."""
        return self._shape.numel()

    def sums(self) -> ClassSums:
        """Return the sums over all examples of the shard. TaskError where they are too large to state."""
        try:
            sums = ClassSums(classes=self.classes, coordinates=self.coordinates, low=self._low, high=self._high)
            for start in range(0, self.examples, AT_ONCE):
                inputs, labels_n = self._read(range(start, min(start + AT_ONCE, self.examples)))
                if inputs.shape[1:] != self._shape:
                    shapes = f"{tuple(inputs.shape[1:])} and {tuple(self._shape)}"
                    raise ValueError(f"inputs of one shape are wanted, and {self._task.name} has {shapes}")
                sums.add(inputs.cpu(), labels_n.cpu())
        except ValueError as error:
            raise TaskError(f"[warm_up]: {error}") from error
        return sums

    def batches(
        self, statistics: SharedStatistics, *, steps: int, size: int, own_share: float, seed: int
    ) -> Iterator[Batch]:
        """Yield `steps` batches of `size` examples, of which the share `own_share` is drawn from the shard."""
        synthetic = SyntheticExamples(statistics, shape=self._shape, low=self._low, high=self._high, seed=seed ^ WARMED)
        own = min(round(own_share * size), size - 1)
        for step in range(steps):
            inputs, labels_n = synthetic.draw(size - own)
            if own:
                with calling(self._task, "train_batch"):
                    found = self._task.train_batch(step, seed=seed ^ WARMED, shard=self._shard, size=own)
                own_inputs, own_labels_n = self._pair(found)
                inputs, labels_n = torch.cat([inputs, own_inputs.float()]), torch.cat([labels_n, own_labels_n.long()])
            yield inputs, labels_n

    def _read(self, numbers: range) -> tuple[torch.Tensor, torch.Tensor]:
        assert implements(self._task, Classifies), "as `__init__` has found"
        with calling(self._task, "examples_at"):
            return self._pair(self._task.examples_at(self._shard, numbers))

    def _pair(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        pair = pair_of(batch)
        if pair is None or not pair[0].is_floating_point() or pair[1].shape != pair[0].shape[:1]:
            raise TaskError(
                f"[warm_up] wants batches of inputs, numbers (n, ...), and labels (n,); {self._task.name}'s are others"
            )
        return pair


def _declared(task: Classifies) -> tuple[int, tuple[float, float]]:
    """Return the number of classes, and the range of inputs. TaskError where they are none: they are the author's."""
    classes, bounds = task.classes, task.input_range
    try:
        low, high = map(float, bounds)
    except (TypeError, ValueError):
        low = high = math.nan
    if type(classes) is not int or not 1 <= classes <= MAX_CLASSES or not -math.inf < low < high < math.inf:
        raise TaskError(
            f"[warm_up] wants classes, a number from 1 to {MAX_CLASSES}, and input_range, two finite numbers of which "
            f"the first is less; {task.name} has {classes!r} and {bounds!r}"
        )
    return classes, (low, high)
