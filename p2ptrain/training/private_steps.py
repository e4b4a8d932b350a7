"""DP-SGD's gradient in place of a batch's: drawn, clipped one by one, summed, noised, and divided by what is expected.

    g = (sum over drawn i of grad_i min(1, C / ||grad_i||)  +  N(0, (z C)^2)) / (q N)

Every example of the shard is drawn with probability q from secret randomness, so that a step may have none: it is then
of noise alone, and a step like any other. The number that was drawn is told to nobody, and neither is a loss.
"""

import math
from collections.abc import Sequence

from torch import nn

from p2ptrain.privacy.allowance import Allowance
from p2ptrain.tasks.base import HasExamples, Shard, Task, TaskError, whole_batches
from p2ptrain.tasks.calling import calling
from p2ptrain.training.example_gradients import (
    ExampleGradients,
    add_weighted_,
    can_autocast,
    check_example_gradients,
    norms_of,
)
from p2ptrain.training.flat import FlatParameters
from p2ptrain.training.machine import Machine
from p2ptrain.training.private_training import PrivateTraining

COMPARED = 3
"""Examples whose gradients are compared with a loop's before the first step: more than one, for vmap to go over."""


CHUNK_BYTES = 1 << 28
"""Most memory of the gradients of single examples, where the user sets no number of them. Chosen."""


class PrivateSteps:
    """Makes the gradients of a trainer whose model has the parameters `flats`: those that members share, and a node's
    own (`train.local`), which are clipped and noised together. TaskError, in one line, for a task whose
    examples cannot be told apart, or have no gradients of their own. `batch_size` is what a step has otherwise."""

    def __init__(
        self,
        task: Task,
        model: nn.Module,
        flats: Sequence[FlatParameters],
        machine: Machine,
        shard: Shard,
        privacy: PrivateTraining,
        *,
        batch_size: int,
    ) -> None:
        if not isinstance(task, HasExamples):
            raise TaskError(
                f"privacy.privatizer={privacy.privatizer.name} draws single examples, and the task {task.name} cannot "
                "name them: give it example_count() and examples_at(), or take privacy.privatizer=update"
            )
        if whole_batches(task):
            raise TaskError(
                f"privacy.privatizer={privacy.privatizer.name}: the loss of the task {task.name} compares the examples "
                "of a batch, so that none has a gradient of its own; take privacy.privatizer=update"
            )
        self._task, self._flats, self._machine, self._shard = task, flats, machine, shard
        self._examples: HasExamples = task
        self._privacy = privacy
        with calling(task, "example_count"):
            self.count = task.example_count(shard)
        if self.count < 1:
            raise TaskError(f"the task {task.name} has no example for shard {shard.index} of {shard.count}")
        self.rate = min(1.0, batch_size / self.count) if privacy.rate is None else privacy.rate
        one = sum(flat.data_d.nbytes for flat in flats)
        fitting = min(math.ceil(2 * self.rate * self.count), CHUNK_BYTES // one)
        self.chunk = privacy.chunk or max(1, fitting)
        self.allowance = Allowance(privacy.privatizer, rate=self.rate, spend=privacy.spend)
        few = [self.count * place // COMPARED for place in range(min(COMPARED, self.count))]
        with calling(task, "examples_at"):
            batch = task.examples_at(shard, few)
        check_example_gradients(task, model, machine, batch)
        self._gradients = ExampleGradients(task, model, machine, autocast=can_autocast(task, model, machine, batch))
        self.tokens = round(self.rate * self.count * expected_tokens(task))
        """Predictions that a step is said to have: those expected, and not those drawn."""

    def gradient_(self) -> None:
        """Make the gradient of one step in the flat buffers. Raises BudgetSpentError, with nothing drawn."""
        self.allowance.take()
        privatizer, source = self._privacy.privatizer, self._privacy.source
        for flat in self._flats:
            flat.grad_d.zero_()
        drawn = source.drawn(self.count, self.rate)
        for start in range(0, len(drawn), self.chunk):
            with calling(self._task, "examples_at"):
                batch = self._examples.examples_at(self._shard, drawn[start : start + self.chunk].tolist())
            with calling(self._task, "loss"):
                gradients = self._gradients(batch)
            factors = privatizer.factors(norms_of(gradients))  # by the norm over all of them
            for flat in self._flats:
                add_weighted_(flat.grad_d, gradients, factors, flat.places)
        for flat in self._flats:
            privatizer.add_noise_(flat.grad_d, source)
            flat.grad_d.div_(self.rate * self.count)


def expected_tokens(task: Task) -> float:
    """Return the predictions of an example, by one that is held out: those of the shard would tell of its data."""
    with calling(task, "eval_batches"):
        held_out = task.eval_batches(1)
    with calling(task, "tokens"):
        return float(task.tokens(held_out[0])) if held_out else 1.0
