"""DP-SGD's gradient in place of a batch's, for a task: its examples are named, drawn and loaded here.

The gradient itself is made in private_gradient.py, which a loop of the user's own has as well (private_loop_steps.py).
"""

from collections.abc import Sequence

from torch import nn

from p2ptrain.privacy.allowance import Allowance
from p2ptrain.tasks.base import HasExamples, Shard, Task, TaskError, whole_batches
from p2ptrain.tasks.calling import calling
from p2ptrain.training.example_gradients import (
    ExampleGradients,
    Gradients,
    agree_in_one_pass,
    can_autocast,
    check_example_gradients,
)
from p2ptrain.training.flat import FlatParameters
from p2ptrain.training.machine import Machine
from p2ptrain.training.micro_batch import MicroBatch
from p2ptrain.training.private_gradient import PoissonDraws, compared, fill_private_gradient_
from p2ptrain.training.private_training import PrivateTraining


class PrivateSteps:
    """Makes the gradients of a trainer whose model has the parameters `flats`: those that members share, and a node's
    own (`train.local`), which are clipped and noised together. TaskError, in one line, for a task whose
    examples cannot be told apart, or have no gradients of their own. `micro`: examples at a time, halved where memory
    runs out. `batch_size` is what a step has otherwise."""

    def __init__(
        self,
        task: Task,
        model: nn.Module,
        flats: Sequence[FlatParameters],
        machine: Machine,
        shard: Shard,
        privacy: PrivateTraining,
        micro: MicroBatch,
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
        self._privacy, self._micro = privacy, micro
        with calling(task, "example_count"):
            count = task.example_count(shard)
        if count < 1:
            raise TaskError(f"the task {task.name} has no example for shard {shard.index} of {shard.count}")
        rate = min(1.0, batch_size / count) if privacy.rate is None else privacy.rate
        one = sum(flat.data_d.nbytes for flat in flats)
        self.draws = PoissonDraws.of(count, rate, privacy, example_bytes=one)
        self.allowance = Allowance(privacy.privatizer, rate=rate, spend=privacy.spend)
        with calling(task, "examples_at"):
            batch = task.examples_at(shard, compared(count))
        with calling(task, "loss"):
            check_example_gradients(task.loss, model, machine, batch)
            autocast = can_autocast(task.loss, model, machine, batch)
            one_pass = agree_in_one_pass(task.loss, model, machine, batch)
        self._gradients = ExampleGradients(task.loss, model, machine, autocast=autocast, one_pass=one_pass)
        self.tokens = round(rate * count * expected_tokens(task))
        """Predictions that a step is said to have: those expected, and not those drawn."""

    def gradient_(self) -> None:
        """Make the gradient of one step in the flat buffers. Raises BudgetSpentError, with nothing drawn."""
        sums = [(flat.grad_d, flat.places) for flat in self._flats]
        made = self._gradients_at, self.draws, self.allowance, self._privacy
        fill_private_gradient_(sums, *made, machine=self._machine, fewer=self._fewer)

    def _gradients_at(self, numbers: list[int]) -> Gradients:
        with calling(self._task, "examples_at"):
            batch = self._examples.examples_at(self._shard, numbers)
        with calling(self._task, "loss"):
            return self._gradients(batch)

    def _fewer(self, now: int, error: Exception) -> int:
        self._micro.halve_from(now, error)
        assert self._micro.size is not None
        return self._micro.size


def expected_tokens(task: Task) -> float:
    """Return the predictions of an example, by one that is held out: those of the shard would tell of its data."""
    with calling(task, "eval_batches"):
        held_out = task.eval_batches(1)
    with calling(task, "tokens"):
        return float(task.tokens(held_out[0])) if held_out else 1.0
