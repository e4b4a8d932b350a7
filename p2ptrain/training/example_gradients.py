"""Gradients of single examples, by torch.func, and the check that they are those of a loop.

`vmap(grad(loss))` computes a loss on each example as a batch of one, over all trained parameters at once,
tied ones included. Hooks on layers do not see a parameter that is used twice, and clip the wrong thing without a word.
A model that vmap cannot run fails loudly, and is refused before the first step. A plain chain of layers, which no hook
has to be put on, gives the same in one pass (row_wise.py): it is compared with a loop as well, and taken where it can.
"""

import copy
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any, Final

import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import _pytree as pytree

from p2ptrain import faults
from p2ptrain.inner.base import Place
from p2ptrain.tasks.base import Batch, TaskError
from p2ptrain.training.flat import trainable
from p2ptrain.training.machine import Machine
from p2ptrain.training.model import twin_of
from p2ptrain.training.row_wise import NotRowWiseError, row_wise_gradients

Gradients = dict[str, torch.Tensor]
"""By parameter, (n, ...) of n examples."""

Loss = Callable[[nn.Module, Batch], torch.Tensor]
"""Returns the mean loss of a batch, a scalar: that of a task, or of a loop of the user's own."""

TOLERANCE: Final = 1e-6
"""Largest difference to a loop's gradient of an example, over the norm of that gradient. In fp64 it is a billionth of
this, and 1e-7 where the loss is computed in fp32."""

WIDENED: Final = 1 << 26
"""Parameters up to which the comparison is made on a copy in fp64: half a gigabyte. Chosen."""

ROUNDED: Final = 1e-4
"""The same where it is made in the model's own type, whose rounding it has to pass: a deep model's in fp32 is 1e-6 and
more. Chosen."""

HALVED: Final = 0.1
"""The same where it is made in bf16. Beyond it the gradients are computed in the model's own type. Chosen."""


class ExampleGradients:
    """Gradients of the examples of a batch, of `model`'s trained parameters as they are when it is called. TaskError
    for a batch that is more than tensors in containers. `autocast`: in the machine's precision, else in the model's
    own. `one_pass`: as `in_one_pass` where that can be, once `agree_in_one_pass` has said so."""

    def __init__(
        self, loss: Loss, model: nn.Module, machine: Machine, *, autocast: bool = True, one_pass: bool = False
    ) -> None:
        self._loss, self._model, self._machine, self._autocast = loss, model, machine, autocast
        self._whole = _LossOf(loss, model)
        self._trained = trainable(model)
        self.one_pass = one_pass

    def __call__(self, batch: Batch) -> Gradients:
        """Return the gradient of each example's loss, (n, ...) by parameter, on the model's device."""
        if self.one_pass:
            with suppress(NotRowWiseError):
                return self.in_one_pass(batch)
        return self.by_vmap(batch)

    def by_vmap(self, batch: Batch) -> Gradients:
        """Return them of any model that vmap can run."""
        leaves, form = pytree.tree_flatten(self._taken(batch))

        def loss_of(parameters: Gradients, *example: torch.Tensor) -> torch.Tensor:
            alone = pytree.tree_unflatten([leaf.unsqueeze(0) for leaf in example], form)
            return functional_call(self._whole, parameters, (alone,))  # type: ignore[no-any-return]

        each: Callable[..., Gradients] = vmap(grad(loss_of), in_dims=(None, *(0 for _ in leaves)))
        # vmap goes over the other kernels example by example. The backward pass is within autocast, too: under vmap, a
        # norm's meets values of both types (pytorch/pytorch#184890).
        parameters = {f"model.{name}": parameter.detach() for name, parameter in self._trained}  # wherever they lie now
        with self._precision(), sdpa_kernel(SDPBackend.MATH):
            return {name.removeprefix("model."): it for name, it in each(parameters, *leaves).items()}

    def in_one_pass(self, batch: Batch) -> Gradients:
        """Return them of a plain chain of layers. Raises NotRowWiseError for another model or loss, and where autocast
        computes."""
        with self._precision():
            if torch.is_autocast_enabled(self._machine.device.type):
                raise NotRowWiseError("autocast: layers and gradients would be of two types")
            return row_wise_gradients(self._loss, self._model, self._trained, self._taken(batch))

    def _taken(self, batch: Batch) -> Batch:
        batch = self._machine.take(batch)
        if not all(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves(batch)):
            raise TaskError("gradients of single examples want batches of tensors in tuples, lists or dicts alone")
        return batch

    def _precision(self) -> AbstractContextManager[object]:
        return self._machine.autocast() if self._autocast else nullcontext()


class _LossOf(nn.Module):
    """The loss as a module, so that functional_call reaches the model inside."""

    def __init__(self, loss: Loss, model: nn.Module) -> None:
        super().__init__()
        self._loss = [loss]  # in a list: a loss that is a module has no parameters here
        self.model = model

    def forward(self, batch: Batch) -> torch.Tensor:
        return self._loss[0](self.model, batch)


def norms_of(gradients: Gradients) -> torch.Tensor:
    """Return the norm of each example's whole gradient, over all parameters together, fp64 (n,)."""
    squares = [
        torch.linalg.vector_norm(it.flatten(1), dim=1, dtype=torch.float64).square() for it in gradients.values()
    ]
    return torch.stack(squares).sum(0).sqrt()


def add_weighted_(sum_d: torch.Tensor, gradients: Gradients, factors_n: torch.Tensor, places: Sequence[Place]) -> None:
    """Add each example's gradient times its factor (n,) to the flat vector (d,), in place. What has the factor 0 is
    left out, whatever its values."""
    kept = factors_n != 0
    every = bool(kept.all())
    weights_n = factors_n if every else factors_n[kept]
    for place in places:
        rows_nd = gradients[place.name].flatten(1)
        rows_nd = (rows_nd if every else rows_nd[kept]).to(sum_d.dtype)
        sum_d[place.span].addmv_(rows_nd.t(), weights_n.to(sum_d.dtype))


def check_example_gradients(loss: Loss, model: nn.Module, machine: Machine, batch: Batch) -> None:
    """Compare the gradients of a few examples with those of a loop, on a copy of the model. TaskError, in one line,
    where vmap cannot compute them, where they differ, and where the model changes what is not trained. What `loss`
    raises by itself passes."""
    with torch.random.fork_rng(devices=[machine.device] if machine.device.type == "cuda" else []):
        if sum(parameter.numel() for parameter in model.parameters()) <= WIDENED:
            try:
                return _compare(loss, copy.deepcopy(model).double(), machine, _double(batch), TOLERANCE)
            except TaskError:
                raise
            except Exception:  # a model that computes in a type of its own; what is its author's fault is raised again
                pass
        return _compare(loss, twin_of(model), machine, batch, ROUNDED)


def agree_in_one_pass(loss: Loss, model: nn.Module, machine: Machine, batch: Batch) -> bool:
    """Return whether one pass gives the gradients of a few examples as a loop does: with a copy of the model in fp64,
    and with its own parameters, which `loss` may know from elsewhere."""

    def compare(twin: nn.Module, batch: Batch, tolerance: float) -> None:
        _compare(loss, twin, machine, batch, tolerance, ExampleGradients.in_one_pass)

    with torch.random.fork_rng(devices=[machine.device] if machine.device.type == "cuda" else []):
        try:
            if sum(parameter.numel() for parameter in model.parameters()) <= WIDENED:
                compare(copy.deepcopy(model).double(), _double(batch), TOLERANCE)
            compare(twin_of(model), batch, ROUNDED)
        except Exception as error:
            if faults.is_device_lost(error):
                raise
            return False
    return True


def can_autocast(loss: Loss, model: nn.Module, machine: Machine, batch: Batch) -> bool:
    """Return whether gradients of a few examples can be computed in the machine's precision, with a copy of the model:
    the backward pass of some layers knows one type alone."""
    if machine.precision == "fp32":
        return True
    with torch.random.fork_rng(devices=[machine.device] if machine.device.type == "cuda" else []):
        try:
            _compare(loss, twin_of(model), machine, batch, HALVED)
        except Exception as error:
            if faults.is_device_lost(error):
                raise
            return False
    return True


def check_buffers(loss: Loss, model: nn.Module, machine: Machine, batch: Batch) -> None:
    """Take the loss of a batch on a copy of the model. TaskError where that changes what is not trained."""
    with torch.random.fork_rng(devices=[machine.device] if machine.device.type == "cuda" else []):
        twin = copy.deepcopy(model)
        before = _buffers_of(twin)
        with machine.autocast():
            loss(twin, machine.take(batch))
        _check_same(before, twin, "update")


def _buffers_of(twin: nn.Module) -> list[torch.Tensor]:
    return [buffer.clone() for buffer in twin.buffers()]


def _check_same(before: list[torch.Tensor], twin: nn.Module, privatizer: str) -> None:
    if any(not torch.equal(one, other) for one, other in zip(before, twin.buffers(), strict=True)):
        raise TaskError(
            f"privacy.privatizer={privatizer}: the model changes buffers while it trains, which no noise covers; take "
            "a model without them, such as one with LayerNorm"
        )


def _compare(
    loss: Loss,
    twin: nn.Module,
    machine: Machine,
    batch: Batch,
    tolerance: float,
    way: Callable[[ExampleGradients, Batch], Gradients] = ExampleGradients.by_vmap,
) -> None:
    before = _buffers_of(twin)
    batch = machine.take(batch)
    expected = [_alone(loss, twin, machine, _example(batch, number)) for number in range(_count(batch))]
    _check_same(before, twin, "example")
    try:
        found = way(ExampleGradients(loss, twin, machine), batch)
    except Exception as error:
        reason = " ".join(str(error).split())[:160]
        raise _refused(f"torch.func.vmap cannot compute them ({reason})") from error
    for number, alone in enumerate(expected):
        whole = float(torch.stack([it.double().square().sum() for it in alone.values()]).sum().sqrt())
        for name, it in alone.items():
            off = float((found[name][number].double() - it.double()).norm())
            if not off <= tolerance * whole:  # false for nan, too
                raise _refused(f"those of {name} differ from a loop's by {off / max(whole, 1e-300):.1e} of the norm")


def _alone(loss: Loss, model: nn.Module, machine: Machine, batch: Batch) -> Gradients:
    names, parameters = zip(*trainable(model), strict=True)
    with machine.autocast():
        value = loss(model, batch)
    if not value.requires_grad:
        raise _refused("the loss has no gradient")
    found = torch.autograd.grad(value, parameters, allow_unused=True)  # not into `.grad`, which the trainer's may be
    if all(it is None for it in found):  # equal to vmap's, and of nothing
        raise _refused("the loss depends on no parameter of the model that it is given")
    return {
        name: torch.zeros_like(parameter) if it is None else it
        for name, parameter, it in zip(names, parameters, found, strict=True)
    }


def _refused(why: str) -> TaskError:
    return TaskError(
        f"privacy.privatizer=example needs gradients of single examples: {why}; take another model, or "
        "privacy.privatizer=update"
    )


def _count(batch: Batch) -> int:
    return int(pytree.tree_leaves(batch)[0].shape[0])


def _example(batch: Batch, number: int) -> Batch:
    return pytree.tree_map(lambda leaf: leaf[number : number + 1], batch)


def _double(batch: Batch) -> Batch:
    def wide(leaf: Any) -> Any:
        return leaf.double() if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() else leaf

    return pytree.tree_map(wide, batch)
