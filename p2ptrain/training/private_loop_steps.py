"""Private steps of a model whose optimizer somebody else's loop steps, and whose parameters stay where they are.

The private gradient (private_gradient.py) is put into `.grad`; what the optimizer makes of it tells nothing more of the
data, as long as nothing else moves the model. So each step is looked at twice. Before it, gradients and parameters have
to be, bit for bit, those that were left here; after it, the model as it is becomes the public one, which lies in a
vector beside it. Nothing else becomes a part of that, whatever the loop does: it is all that may leave.
Buffers and frozen parameters leave as they were at the join.
"""

import inspect
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Final, SupportsIndex

import torch
from torch import nn
from torch.utils import _pytree as pytree

from p2ptrain.privacy.allowance import Allowance
from p2ptrain.privacy.base import Release
from p2ptrain.tasks.base import Batch, TaskError
from p2ptrain.training.example_gradients import (
    ExampleGradients,
    Gradients,
    Loss,
    agree_in_one_pass,
    check_example_gradients,
)
from p2ptrain.training.flat import places, trainable
from p2ptrain.training.layout import untrained_of
from p2ptrain.training.machine import Machine
from p2ptrain.training.micro_batch import half_of
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
    on the device beside the gradients, one on the CPU, and copies of the buffers. Calls belong to the thread that
    trains.

    `public_d` (d,): the model that counts as known to everybody. The parameters are set to it. Raises TaskError where
    no optimizer, or no rate, was given, for an optimizer that computes gradients itself, and for a model on several
    devices.
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
        if _wants_closure(optimizer):
            raise TaskError(
                f"privacy.privatizer={name} makes each step's gradient, and {type(optimizer).__name__} computes its "
                "own in step(closure): take an optimizer that steps by .grad, such as SGD or AdamW"
            )
        if len({parameter.device for parameter in values.parameters}) > 1:
            raise TaskError(f"privacy.privatizer={name} wants all trained parameters on one device")
        self._model, self._optimizer, self._values, self._privacy = model, optimizer, values, privacy
        self.allowance = Allowance(privacy.privatizer, rate=privacy.rate, spend=privacy.spend)
        self._rate = privacy.rate
        self._named, self._places = trainable(model), places(model)
        self._gradient_d = torch.zeros(values.numel, device=values.device, dtype=torch.float32)
        self._filled = self._stepping = False
        self._knows_optimizer = False
        self.micro_batch: int | None = None
        """Examples whose gradients are in memory at a time, once memory has run out with more."""
        self.public_d = public_d
        """The model after the last step that was accounted for (d,): what may leave."""
        self.untrained: Mapping[str, torch.Tensor] = {}
        """Buffers and frozen parameters of the model's state that may leave, by name."""
        self.load_(public_d)
        self.untrained_loaded()

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
        self._be_public()

    def add_(self, correction_d: torch.Tensor) -> None:
        """Add `correction_d` (d,) to the model, which is of the same kind."""
        rounds = self._values.is_rounded or self._values.is_finer
        is_public = rounds and self._is_public()
        self._values.add_(correction_d)
        if is_public:
            self._be_public()
        else:
            self.public_d.add_(correction_d)

    @property
    def knows_optimizer(self) -> bool:
        """Return whether the optimizer's state is of private steps alone."""
        return self._knows_optimizer or not _has_stepped(self._optimizer)

    @property
    def unstepped(self) -> bool:
        """Return whether the newest private gradient was not stepped by."""
        return self._filled

    def optimizer_loaded(self) -> None:
        """Note that the optimizer has the state that a checkpoint of these steps has kept."""
        self._knows_optimizer = True

    def untrained_loaded(self) -> None:
        """Note that buffers and frozen parameters are those that may leave: at the join, and of a checkpoint."""
        self.untrained = untrained_of(self._model, self._named)
        self._frozen = [(it, it._version) for it in _frozen(self._model)]
        self._buffers = [it.detach().clone() for it in self._model.buffers()]

    def check_untrained(self) -> None:
        """Raise TaskError where a buffer or a frozen parameter has changed since the join: what is released would
        depend on the data in another way."""
        frozen = [(it, it._version) for it in _frozen(self._model)]
        same = len(frozen) == len(self._frozen) and all(
            one is other and version == then for (one, version), (other, then) in zip(frozen, self._frozen, strict=True)
        )
        buffers = list(self._model.buffers())
        if not same or len(buffers) != len(self._buffers) or not all(map(_are_same, buffers, self._buffers)):
            raise TaskError(
                "[privacy]: a buffer or a frozen parameter of the model has changed since the join, which no noise "
                "covers: put the model into eval mode for what you compute with it beside private steps"
            )

    def examples(self, loss: Loss, examples_at: ExamplesAt, count: SupportsIndex) -> "LoopExamples":
        """Return what `fill_` draws from. Raises TaskError where the gradients of examples are not a loop's."""
        try:
            count = operator.index(count)
        except TypeError:
            raise TaskError(f"the number of examples is {count!r}, and no integer") from None
        if count < 1:
            raise TaskError("there is no example to draw")
        machine = Machine(device=self._values.device, precision="fp32", threads=0)
        draws = PoissonDraws.of(count, self._rate, self._privacy, example_bytes=4 * self._values.numel)
        draws.chunk = min(draws.chunk, self.micro_batch or draws.chunk)
        return LoopExamples(self._model, machine, loss, examples_at, draws)

    def fill_(self, examples: "LoopExamples") -> None:
        """Put a private gradient of new draws into `.grad` of the trained parameters, for one step. Raises
        BudgetSpentError, with nothing drawn; TaskError where the model was changed by something else than such
        steps."""
        self._filled = self._stepping = False
        self._check_model()
        sums = [(self._gradient_d, self._places)]
        made = examples.gradients_at, examples.draws, self.allowance, self._privacy
        fill_private_gradient_(sums, *made, machine=examples.machine, fewer=self._fewer)
        for (_, parameter), part in zip(self._named, self._parts(), strict=True):
            parameter.grad = torch.empty_like(parameter, requires_grad=False).copy_(part)
        self._filled = True

    def check_step(self, *, has_closure: bool, inherited: bool = False) -> None:
        """Look at what the optimizer is about to step by. Raises TaskError for all but a private gradient, as it was
        made, of the model as it was left: nothing has moved then. `inherited`: the optimizer calls it within its own
        step, which was looked at."""
        if has_closure:
            raise TaskError("[privacy]: optimizer.step was given a closure, which computes gradients of its own")
        if inherited:
            return
        self._stepping = False
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
        self._be_public()

    def check_is_no_others(self, optimizer: torch.optim.Optimizer) -> None:
        """Raise TaskError where another optimizer is about to step what is trained."""
        own = {id(each) for each in self._values.parameters}
        held = (id(each) for group in optimizer.param_groups for each in group["params"])
        if optimizer is not self._optimizer and not own.isdisjoint(held):
            raise TaskError(
                f"[privacy]: a second optimizer ({type(optimizer).__name__}) is about to step what is trained here: "
                "give all of it to the one that p2ptrain.join has, in groups where they differ"
            )

    def _fewer(self, now: int, error: Exception) -> int:
        self.micro_batch = half_of(now, error)
        return self.micro_batch

    def _parts(self) -> list[torch.Tensor]:
        return [self._gradient_d[place.span].view(place.shape) for place in self._places]

    def _is_public(self) -> bool:
        if not _are_same(self._values.vector(), self.public_d):
            return False
        return all(_are_same(it, self._finer[name]) for name, it in self._values.finer().items())

    def _be_public(self) -> None:
        self.public_d = self._values.vector()
        self._finer = self._values.finer()  # bits of float64, which the vector lacks

    def _check_model(self) -> None:
        self._values.check_same(self._model)
        if [name for name, _ in trainable(self._model)] != [name for name, _ in self._named]:
            raise TaskError("[privacy]: parameters were frozen or thawed after the join: join anew, with a new run_dir")
        self._check_parameters()
        self.check_untrained()
        if not self.knows_optimizer:
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
        self._gradients = ExampleGradients(self._scalar, model, machine)
        self._modes: Sequence[bool] = ()
        self._compare()

    def gradients_at(self, numbers: list[int]) -> Gradients:
        """Return the gradients of the examples of these numbers. Raises TaskError for a batch of another size."""
        if self._modes != _modes(self._model):  # train() or eval() since: another function
            self._compare()
        return self._gradients(self._batch(numbers))

    def _compare(self) -> None:
        if not torch.is_grad_enabled() or torch.is_inference_mode_enabled():
            raise TaskError("[privacy]: no gradient is computed within torch.no_grad() or inference_mode()")
        batch = self._batch(compared(self.draws.count))
        check_example_gradients(self._scalar, self._model, self.machine, batch)
        self._gradients.one_pass = agree_in_one_pass(self._scalar, self._model, self.machine, batch)
        self._modes = _modes(self._model)

    def _scalar(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        value = self._loss(model, batch)
        if not isinstance(value, torch.Tensor) or value.ndim:
            kind = f"shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else type(value).__name__
            raise TaskError(f"[privacy]: the loss has to be a scalar tensor, and is {kind}")
        return value

    def _batch(self, numbers: list[int]) -> Batch:
        batch = self._examples_at(numbers)
        leaves = pytree.tree_leaves(batch)
        strangers = [type(leaf).__name__ for leaf in leaves if not isinstance(leaf, torch.Tensor)]
        if strangers or not leaves:
            found = strangers[0] if strangers else "nothing"
            raise TaskError(f"[privacy]: a batch has to be tensors in tuples, lists or dicts, and here is {found}")
        for leaf in leaves:
            if not leaf.ndim or len(leaf) != len(numbers):
                shape = tuple(leaf.shape)
                raise TaskError(
                    f"[privacy]: {len(numbers)} examples were asked for, and a tensor of shape {shape} came: its first "
                    "dimension has to be the examples, each once"
                )
        return batch


def _modes(model: nn.Module) -> list[bool]:
    return [module.training for module in model.modules()]


def _frozen(model: nn.Module) -> list[torch.Tensor]:
    """Parameters that are not trained. Whether one was written to is told by its version: they may be billions."""
    return [it for it in model.parameters() if not it.requires_grad and not it.is_inference()]  # those never change


def _are_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors are alike, bit for bit: nan is nan."""
    if one.shape != other.shape or one.dtype != other.dtype or one.device != other.device:
        return False
    if one.layout is not torch.strided:
        one, other = one.to_dense(), other.to_dense()
    return torch.equal(*(it.detach().contiguous().view(-1).view(torch.uint8) for it in (one, other)))


def _wants_closure(optimizer: torch.optim.Optimizer) -> bool:
    """Whether it steps by nothing but a closure, as LBFGS does."""
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    return closure is not None and closure.default is inspect.Parameter.empty


def _has_stepped(optimizer: torch.optim.Optimizer) -> bool:
    """Whether the optimizer remembers anything but what it begins with: zeros, or a number that is everywhere the same,
    as in Adagrad's sums before the first step."""
    return any(map(_is_of_steps, optimizer.state.values()))


def _is_of_steps(state: Mapping[str, object]) -> bool:
    held = pytree.tree_leaves(state)
    if "step" in state and not state["step"]:
        return any(isinstance(it, torch.Tensor) and not (it == it.flatten()[:1]).all() for it in held)
    return any(bool(it.any()) if isinstance(it, torch.Tensor) else bool(it) for it in held)
