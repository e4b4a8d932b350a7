"""How many examples go through the model at a time: a whole batch, or fewer once memory has run out. It never grows
again. Where a whole batch has not fitted, the number may be searched for from below: memory then runs out at most once
more in the search, and not at every half. Each time may fail another program on the device, or move its driver to the
host's slow memory.

A batch is cut along the first dimension of its tensors. The gradient of each piece counts by its predictions, so that
their sum is that of the whole batch, within rounding: a task's loss is the mean over the predictions of a batch.
"""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import numpy as np
from torch import nn

from p2ptrain import faults
from p2ptrain.tasks.base import Batch, Task, whole_batches
from p2ptrain.tasks.batches import examples_in, pieces
from p2ptrain.tasks.calling import TaskFaultError, calling
from p2ptrain.training.model import twin_of

ONE_AT_A_TIME = (
    "take a smaller model or shorter examples, train.precision=bf16 where the device computes in it, or end what else "
    "holds the device's memory"
)

T = TypeVar("T")


class MicroBatch:
    """Cuts batches into micro-batches of at most `size` examples; None: it leaves them whole."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self.size: int | None = None

    def take(self, examples: int) -> None:
        """Take no more than so many examples at a time from now on: fewer, where memory has run out with as many."""
        self.size = examples if self.size is None else min(self.size, examples)

    def cut(self, batch: Batch) -> list[tuple[Batch, int]]:
        """Return the pieces of `batch`, each with its predictions. Of several, those without any are left out."""
        parts = [batch] if self.size is None else pieces(batch, self.size)
        with calling(self._task, "tokens"):
            counted = [(part, int(self._task.tokens(part))) for part in parts]
        return counted if len(counted) == 1 else [(part, count) for part, count in counted if count] or counted[:1]

    def search(
        self, batch: Batch, model: nn.Module, attempt: Callable[[nn.Module, Batch], object], free: Callable[[], None]
    ) -> None:
        """Find how many examples fit, after `halve`, since all of `batch` did not: `attempt` is called with a twin of
        `model` and the first 1, 2, 4, ... examples, fewer than all, until memory runs out; `free` is called then. What
        `halve` has chosen stays where there is no room for a twin, where the model cannot be copied, or where `attempt`
        raises anything else, as of a model that wants two examples.

        The model's buffers and attributes and the generators of Python and numpy stay as they are; the gradient and
        torch's generators do not. What a task keeps outside its model sees the additional calls.
        """
        with _generators_kept():
            fits = self._searched(batch, model, attempt)
        self.size = self.size if fits is None else max(1, fits)
        free()

    def _searched(self, batch: Batch, model: nn.Module, attempt: Callable[[nn.Module, Batch], object]) -> int | None:
        """The largest number that fitted, 0 where one example did not. None: it cannot be searched for."""
        examples, size, fits = examples_in(batch) or 0, 1, 0
        try:
            twin = twin_of(model)
        except Exception:  # of copying anybody's model, or of memory
            return None
        while size < examples:
            try:
                attempt(twin, pieces(batch, size)[0])
            except Exception as error:  # whatever it is, the step itself raises it again if it is the task's fault
                return fits if faults.lacks_memory(error) else None
            fits, size = size, 2 * size
        return fits

    def fitting(
        self,
        batch: Batch,
        attempt: Callable[[], T],
        free: Callable[[], None],
        search: Callable[[], None] | None = None,
    ) -> T:
        """Return what `attempt` makes of pieces of `batch`, made anew with ever smaller ones until they fit; `free` is
        called in between, and `search` once, after the first. Raises as `halve` does."""
        while True:
            try:
                return attempt()
            except Exception as error:
                self.halve(error, batch)
            free()
            if search is not None:
                search()
                search = None

    def halve(self, error: Exception, batch: Batch) -> None:
        """Take half as many examples at a time from now on: `batch` did not fit. Raise `error` where it is no want of
        memory, or this batch cannot be cut; TaskFaultError where one example alone does not fit."""
        examples = None if whole_batches(self._task) else examples_in(batch)
        if examples is None:
            raise error
        self.halve_from(examples if self.size is None else min(self.size, examples), error)

    def halve_from(self, now: int, error: Exception) -> None:
        """Take half of `now` examples at a time from now on, as `half_of`."""
        self.size = half_of(now, error)


def half_of(now: int, error: Exception) -> int:
    """Return half of `now` examples, which did not fit. Raise `error` where it is no want of memory; TaskFaultError
    where one example alone does not fit."""
    if not faults.lacks_memory(error):
        raise error
    if now <= 1:
        what = error.message if isinstance(error, TaskFaultError) else faults.out_of_memory(error)
        raise TaskFaultError(f"{what}, with one example at a time", ONE_AT_A_TIME) from error
    return now // 2


@contextmanager
def _generators_kept() -> Iterator[None]:
    """Those of Python and numpy, which a task may draw from beside torch's."""
    of_python, of_numpy = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(of_python)
        np.random.set_state(of_numpy)
