"""Private steps of a model whose optimizer somebody else's loop steps, and whose parameters stay where they are.

The private gradient (private_gradient.py) is put into `.grad`; what the optimizer makes of it tells nothing more of the
data, as long as nothing else moves the model. So each step is looked at twice. Before it, gradients and parameters have
to be, bit for bit, those that were left here; after it, the model as it is becomes the public one, which lies in a
vector beside it. Nothing else becomes a part of that, whatever the loop does: it is all that may leave.
"""

from collections.abc import Callable, Sequence
from typing import Final

import torch
from torch import nn
from torch.utils import _pytree as pytree

from p2ptrain.privacy.allowance import Allowance
from p2ptrain.privacy.base import Release
from p2ptrain.tasks.base import Batch, TaskError
from p2ptrain.training.example_gradients import ExampleGradients, Gradients, Loss, check_example_gradients
from p2ptrain.training.flat import places, trainable
from p2ptrain.training.machine import Machine
from p2ptrain.training.parameter_vector import ParameterVector
from p2ptrain.training.private_gradient import PoissonDraws, compared, fill_private_gradient_
from p2ptrain.training.private_training import PrivateTraining

ExamplesAt = Callable[[list[int]], Batch]
"""Returns the examples of these numbers as a batch, in their order: tensors in tuples, lists or dicts."""

ONE_STEP: Final = "take one step of the optimizer in each turn of `for _ in swarm.private_gradients(...)`"
NOTHING_ELSE: Final = (
    "leave backward(), clipping, scaling and zero_grad() out (privacy.clip bounds each example's gradient)"
)


class PrivateLoopSteps:
    """Makes the gradients of `model`, whose parameters are `values`, and holds its steps to them. Memory: two vectors
    on the device beside the gradients, and one on the CPU. Calls belong to the thread that trains.

    `public_d` (d,): the model that counts as known to everybody. The parameters are set to it. Raises TaskError where
    no optimizer, or no rate, was given, and for a model on several devices.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | None,
        values: ParameterVector,
        privacy: PrivateTraining,
        public_d: torch.Tensor,
    ) -> None:
        name = privacy.privatizer.name
        if optimizer is None:
            raise TaskError(f"privacy.privatizer={name} looks at each step: give the optimizer to p2ptrain.join")
        if privacy.rate is None:
            raise TaskError(f"privacy.privatizer={name} in a loop of one's own wants privacy.rate")
        if len({parameter.device for parameter in values.parameters}) > 1:
            raise TaskError(f"privacy.privatizer={name} wants all trained parameters on one device")
        self._model, self._optimizer, self._values, self._privacy = model, optimizer, values, privacy
        self.allowance = Allowance(privacy.privatizer, rate=privacy.rate, spend=privacy.spend)
        self._rate = privacy.rate
        self._named, self._places = trainable(model), places(model)
        self._gradient_d = torch.zeros(values.numel, device=values.device, dtype=torch.float32)
        self._filled = self._stepping = False
        self._knows_optimizer = False
        """Whether the optimizer's state is of private steps alone."""
        self.public_d = public_d
        """The model after the last step that was accounted for (d,): what may leave."""
        self.load_(public_d)

    def ask_ahead(self, steps: int) -> None:
        """Ask for the releases of a round of so many steps. Raises BudgetSpentError."""
        self.allowance.ask_ahead(steps)

    def release_of(self, steps: int) -> Release | None:
        """Return what a round of so many steps will release."""
        return self.allowance.release_of(steps)

    def begin_round(self) -> None:
        """Do nothing: each step is a release."""

    def end_round(self) -> None:
        """Do nothing: each step was a release."""

    def load_(self, x_d: torch.Tensor) -> None:
        """Set the model to `x_d` (d,), which is of others' data, or of moves that were released."""
        self._values.load_(x_d)
        self.public_d = self._values.vector()

    def add_(self, correction_d: torch.Tensor) -> None:
        """Add `correction_d` (d,) to the model, which is of the same kind."""
        rounds = self._values.is_rounded or self._values.is_finer
        is_public = rounds and self._is_public()
        self._values.add_(correction_d)
        self.public_d = self._values.vector() if is_public else self.public_d.add_(correction_d)

    def optimizer_loaded(self) -> None:
        """Note that the optimizer has the state that a checkpoint of these steps has kept."""
        self._knows_optimizer = True

    def examples(self, loss: Loss, examples_at: ExamplesAt, count: int) -> "LoopExamples":
        """Return what `fill_` draws from. Raises TaskError where the gradients of examples are not a loop's."""
        if count < 1:
            raise TaskError("there is no example to draw")
        machine = Machine(device=self._values.device, precision="fp32", threads=0)
        draws = PoissonDraws.of(count, self._rate, self._privacy, example_bytes=4 * self._values.numel)
        return LoopExamples(self._model, machine, loss, examples_at, draws)

    def fill_(self, examples: "LoopExamples") -> None:
        """Put a private gradient of new draws into `.grad` of the trained parameters, for one step. Raises
        BudgetSpentError, with nothing drawn; TaskError where the model was changed by something else than such
        steps."""
        self._filled = False
        self._check_model(examples)
        sums = [(self._gradient_d, self._places)]
        made = examples.gradients_at, examples.draws, self.allowance, self._privacy
        fill_private_gradient_(sums, *made, machine=examples.machine)
        for (_, parameter), part in zip(self._named, self._parts(), strict=True):
            parameter.grad = torch.empty_like(parameter, requires_grad=False).copy_(part)
        self._filled = True

    def check_step(self, *, has_closure: bool) -> None:
        """Look at what the optimizer is about to step by. Raises TaskError for all but a private gradient, as it was
        made, of the model as it was left: nothing has moved then."""
        self._stepping = False
        if has_closure:
            raise TaskError("[privacy]: optimizer.step was given a closure, which computes gradients of its own")
        if not self._filled:
            raise TaskError(f"[privacy]: this step has no private gradient: {ONE_STEP}")
        self._check_gradients()
        self._check_parameters()
        self._stepping = True

    def step_taken(self) -> None:
        """Have the model as it is be the public one: `check_step` has seen the step. Raises TaskError where it has
        not."""
        if not self._stepping:
            raise TaskError(f"[privacy]: a step was taken that was not looked at before: {ONE_STEP}")
        self._filled = self._stepping = False
        self.public_d = self._values.vector()

    def _parts(self) -> list[torch.Tensor]:
        return [self._gradient_d[place.span].view(place.shape) for place in self._places]

    def _is_public(self) -> bool:
        bits_d, public_d = self._values.vector().view(torch.int32), self.public_d.view(torch.int32)
        return torch.equal(bits_d, public_d)  # as bits: nan is nan

    def _check_model(self, examples: "LoopExamples") -> None:
        self._values.check_same(self._model)
        if [name for name, _ in trainable(self._model)] != [name for name, _ in self._named]:
            raise TaskError("[privacy]: parameters were frozen or thawed after the join: join anew, with a new run_dir")
        self._check_parameters()
        examples.check_untrained()
        if not self._knows_optimizer and _has_stepped(self._optimizer):
            raise TaskError(
                f"[privacy]: the optimizer ({type(self._optimizer).__name__}) has a state already, and nothing says "
                "what it was made of: give p2ptrain.join a new one"
            )
        self._knows_optimizer = True

    def _check_parameters(self) -> None:
        if not self._is_public():
            raise TaskError(
                "[privacy]: the parameters were moved by something else than a private step: load no state into the "
                "model, and copy no average into it, within the block"
            )

    def _check_gradients(self) -> None:
        own = {id(parameter) for _, parameter in self._named}
        for (name, parameter), part in zip(self._named, self._parts(), strict=True):
            if parameter.grad is None or not torch.equal(parameter.grad, part.to(parameter.dtype)):
                raise TaskError(f"[privacy]: the gradient of {name} is not the private one any more: {NOTHING_ELSE}")
        for group in self._optimizer.param_groups:
            if any(id(each) not in own and each.grad is not None for each in group["params"]):
                raise TaskError(
                    "[privacy]: the optimizer is about to step a parameter that is not shared, by a gradient that no "
                    "noise covers: take it out of the optimizer"
                )


class LoopExamples:
    """Examples of a user's own loop, and their gradients. Raises TaskError where those are not a loop's."""

    def __init__(
        self, model: nn.Module, machine: Machine, loss: Loss, examples_at: ExamplesAt, draws: PoissonDraws
    ) -> None:
        self.draws = draws
        self._model, self.machine, self._loss, self._examples_at = model, machine, loss, examples_at
        self._gradients = ExampleGradients(loss, model, machine)
        self._untrained = _untrained(model)
        self._modes: Sequence[bool] = ()
        self._compare()

    def gradients_at(self, numbers: list[int]) -> Gradients:
        """Return the gradients of the examples of these numbers. Raises TaskError for a batch of another size."""
        if self._modes != _modes(self._model):  # train() or eval() since: another function
            self._compare()
        return self._gradients(self._batch(numbers))

    def check_untrained(self) -> None:
        """Raise TaskError where a buffer or a frozen parameter has changed since the loop began: what is released would
        depend on the data in another way."""
        if _untrained(self._model) != self._untrained:
            raise TaskError(
                "[privacy]: a buffer or a frozen parameter of the model has changed within the loop, which no noise "
                "covers: put the model into eval mode for what you compute with it beside private steps"
            )

    def _compare(self) -> None:
        check_example_gradients(self._loss, self._model, self.machine, self._batch(compared(self.draws.count)))
        self._modes = _modes(self._model)

    def _batch(self, numbers: list[int]) -> Batch:
        batch = self._examples_at(numbers)
        for leaf in pytree.tree_leaves(batch):
            if isinstance(leaf, torch.Tensor) and (not leaf.ndim or len(leaf) != len(numbers)):
                shape = tuple(leaf.shape)
                raise TaskError(
                    f"[privacy]: {len(numbers)} examples were asked for, and a tensor of shape {shape} came: its first "
                    "dimension has to be the examples, each once"
                )
        return batch


def _modes(model: nn.Module) -> list[bool]:
    return [module.training for module in model.modules()]


def _untrained(model: nn.Module) -> list[tuple[int, int]]:
    """Which tensors there are beside the trained ones, and how often each was written to."""
    frozen = [parameter for parameter in model.parameters() if not parameter.requires_grad]
    tensors = [each for each in (*frozen, *model.buffers()) if not each.is_inference()]  # those are never written to
    return [(id(each), each._version) for each in tensors]


def _has_stepped(optimizer: torch.optim.Optimizer) -> bool:
    """Whether the optimizer remembers anything but zeros."""
    held = [value for state in optimizer.state.values() for value in pytree.tree_leaves(state)]
    return any(bool(it.any()) if isinstance(it, torch.Tensor) else bool(it) for it in held)
