"""How many examples go through the model at a time: a whole batch, or fewer once memory has run out. It never grows
again. On a device with memory of its own the first number is searched for from below, so that memory runs out once at
most. Each time may fail another program on the device, or move its driver to the host's slow memory.

A batch is cut along the first dimension of its tensors. The gradient of each piece counts by its predictions, so that
their sum is that of the whole batch, within rounding: a task's loss is the mean over the predictions of a batch.
"""

from collections.abc import Callable
from typing import TypeVar

from p2ptrain import faults
from p2ptrain.tasks.base import Batch, Task, whole_batches
from p2ptrain.tasks.batches import examples_in, pieces
from p2ptrain.tasks.calling import TaskFaultError, calling

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

    def cut(self, batch: Batch) -> list[tuple[Batch, int]]:
        """Return the pieces of `batch`, each with its predictions. Of several, those without any are left out."""
        parts = [batch] if self.size is None else pieces(batch, self.size)
        with calling(self._task, "tokens"):
            counted = [(part, int(self._task.tokens(part))) for part in parts]
        return counted if len(counted) == 1 else [(part, count) for part, count in counted if count] or counted[:1]

    def search(self, batch: Batch, attempt: Callable[[Batch], object], free: Callable[[], None]) -> None:
        """Find how many examples fit at a time: `attempt` is called with the first 1, 2, 4, ... of `batch`, and with
        all of it at last, until memory runs out; `free` is called then. Nothing is found where a batch cannot be cut,
        or where `attempt` raises anything else, as a model may that wants two examples."""
        examples = None if whole_batches(self._task) else examples_in(batch)
        if examples is None or self.size is not None:
            return
        size = fits = 1
        while True:
            try:
                attempt(pieces(batch, size)[0])
            except Exception as error:
                if faults.lacks_memory(error):
                    self.size = fits
                break
            fits = size
            if size >= examples:
                return
            size = min(2 * size, examples)
        free()

    def fitting(self, batch: Batch, attempt: Callable[[], T], free: Callable[[], None]) -> T:
        """Return what `attempt` makes of pieces of `batch`, made anew with ever smaller ones until they fit; `free` is
        called in between. Raises as `halve` does."""
        while True:
            try:
                return attempt()
            except Exception as error:
                self.halve(error, batch)
            free()

    def halve(self, error: Exception, batch: Batch) -> None:
        """Take half as many examples at a time from now on: `batch` did not fit. Raise `error` where it is no want of
        memory, or this batch cannot be cut; TaskFaultError where one example alone does not fit."""
        if not faults.lacks_memory(error):
            raise error
        examples = None if whole_batches(self._task) else examples_in(batch)
        if examples is None:
            raise error
        now = examples if self.size is None else min(self.size, examples)
        if now <= 1:
            what = error.message if isinstance(error, TaskFaultError) else faults.out_of_memory(error)
            raise TaskFaultError(f"{what}, with one example at a time", ONE_AT_A_TIME) from error
        self.size = now // 2
