"""Gradients of single examples from one pass over their batch, for chains of layers that compute each row by itself.

vmap takes milliseconds in Python whatever the model: several steps of a small one (docs/benchmarks.md). In a chain of
known layers, an example's gradient follows from the input of each layer and from what comes back to its output:

    dL_i / dW  =  sum over positions t of  (dL_i / dy_it) x_it^T        for y = W x + b

That is true only where no row reaches another one's loss, so nothing is taken for granted. The layers are of known
types, plain and each used once, and this is looked at anew in each call. The loss is computed by vmap, on each row of
the output as a batch of one: what it does with a batch (a mean, weights, places left out) cannot mix examples. All
else is NotRowWiseError, and is computed by vmap as a whole.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple, NoReturn, cast

import torch
from torch import nn
from torch.func import vmap
from torch.nn import functional
from torch.nn.modules import module as torch_module
from torch.utils import _pytree as pytree

from p2ptrain.tasks.base import Batch
from p2ptrain.training.flat import Named

Parts = dict[str, torch.Tensor]
"""Gradients (n, ...) of a layer's parameters, by the names that they have in it."""


class NotRowWiseError(Exception):
    """One pass does not give the gradients of single examples of this model, or with this loss."""


def row_wise_gradients(
    loss: Callable[[nn.Module, Batch], torch.Tensor], model: nn.Module, trained: Named, batch: Batch
) -> Parts:
    """Return the gradient of each example's loss, (n, ...) by parameter, of a model whose parameters `trained` train.
    The model is given the first tensor of `batch`, (n, ...). Raises NotRowWiseError where one pass does not give them,
    or where `loss` asks more of the model than what it computes of that tensor."""
    leaves, form = pytree.tree_flatten(batch)
    layers = layers_of(model, trained)

    def loss_of(output: torch.Tensor, *example: torch.Tensor) -> torch.Tensor:
        alone = [leaf.unsqueeze(0) for leaf in example]
        computed = cast(nn.Module, _Computed(alone[0], output.unsqueeze(0)))
        return loss(computed, pytree.tree_unflatten(alone, form))

    with torch.enable_grad():
        passes = _forward(layers, leaves[0])
        losses_n = vmap(loss_of)(passes[-1].output, *leaves)
        if losses_n.ndim != 1:
            raise NotRowWiseError("the loss of one example is no scalar")
        tuned = [each for each in passes if each.layer.trained]
        returned = torch.autograd.grad(losses_n.sum(), [each.output for each in tuned])
    found: Parts = {}
    with torch.no_grad():
        for each, output_grad in zip(tuned, returned, strict=True):
            parts = _PARTS[type(each.layer.module)](each.layer.module, each.input, output_grad)
            found |= {name: parts[own] for own, name in each.layer.trained.items()}
    return found


class Layer(NamedTuple):
    """A layer of the chain, and the names in the model of its parameters that train, by their own."""

    module: nn.Module
    trained: dict[str, str]


def layers_of(model: nn.Module, trained: Named) -> list[Layer]:
    """Return the chain that `model` computes. Raises NotRowWiseError unless it is of known layers that nothing
    changes, which have each parameter of `trained` once."""
    if torch_module._has_any_global_hook():  # type: ignore[no-untyped-call]
        raise NotRowWiseError("a hook is on all modules")
    layers, owned = [], []
    for prefix, module in _chain(model, ""):
        known = module._parameters if type(module) in _PARTS else {}
        own = {name: it for name, it in known.items() if it is not None and it.requires_grad}
        layers.append(Layer(module, {name: prefix + name for name in own}))
        owned += [(prefix + name, it) for name, it in own.items()]
    if len(owned) != len(trained) or any(
        name != other or one is not it or type(it) is not nn.Parameter
        for (name, one), (other, it) in zip(owned, trained, strict=True)
    ):
        raise NotRowWiseError("a parameter is used twice, or elsewhere, or is of a type of its own")
    return layers


def _chain(module: nn.Module, prefix: str) -> Iterator[tuple[str, nn.Module]]:
    kind = type(module)  # never isinstance: a subclass may compute anything
    hooks = module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    if hooks or "forward" in vars(module):
        raise NotRowWiseError(f"the forward pass of a {kind.__name__} was changed")
    if kind is nn.Sequential:
        for name, child in module._modules.items():
            if child is not None:
                yield from _chain(child, f"{prefix}{name}.")
        return
    if kind not in _PARTS and kind not in _ELEMENTWISE and kind is not nn.Flatten:
        raise NotRowWiseError(f"{kind.__name__} is no layer that is known to compute each row by itself")
    if getattr(module, "inplace", False):
        raise NotRowWiseError("a layer writes into the output of the one before")
    yield prefix, module


class _Pass(NamedTuple):
    """A layer's input and output, (n, ...)."""

    layer: Layer
    input: torch.Tensor
    output: torch.Tensor


def _forward(layers: Sequence[Layer], examples_n: torch.Tensor) -> list[_Pass]:
    passes, value = [], examples_n.detach()
    for layer in layers:
        if value.ndim < _least_dimensions(layer.module):
            raise NotRowWiseError(f"a {type(layer.module).__name__} goes over the examples")
        passes.append(_Pass(layer, value, layer.module(value)))
        value = passes[-1].output
    return passes


def _least_dimensions(module: nn.Module) -> int:
    """Return how many dimensions an input has at least of which the layer leaves the first one alone."""
    if isinstance(module, nn.LayerNorm):
        return 1 + len(module.normalized_shape)
    if isinstance(module, nn.Flatten) and (module.start_dim, module.end_dim) != (1, -1):
        raise NotRowWiseError("a Flatten goes over some dimensions alone")
    return 1 if type(module) in _ELEMENTWISE else 2


class _Computed:
    """Given to a loss in place of the model: it returns what that has computed of the example, and has nothing else."""

    def __init__(self, example: torch.Tensor, output: torch.Tensor) -> None:
        self._example, self._output = example, output

    def __call__(self, *inputs: object, **options: object) -> torch.Tensor:
        if options or len(inputs) != 1 or inputs[0] is not self._example:
            raise NotRowWiseError("the loss calls the model with something else than the batch's first tensor")
        return self._output

    def __getattr__(self, name: str) -> NoReturn:
        raise NotRowWiseError(f"the loss asks the model for {name}")


def _linear(module: nn.Module, input_n: torch.Tensor, output_grad_n: torch.Tensor) -> Parts:
    if input_n.ndim == 2:  # one position: a product of two vectors
        return {"weight": output_grad_n[:, :, None] * input_n[:, None, :], "bias": output_grad_n}
    rows, grads = (it.reshape(len(it), -1, it.shape[-1]) for it in (input_n, output_grad_n))  # (n, positions, width)
    return {"weight": grads.transpose(1, 2) @ rows, "bias": grads.sum(1)}


def _layer_norm(module: nn.Module, input_n: torch.Tensor, output_grad_n: torch.Tensor) -> Parts:
    assert isinstance(module, nn.LayerNorm), "the table below"
    shape = module.normalized_shape
    scaled = output_grad_n * functional.layer_norm(input_n, shape, eps=module.eps)
    count = len(input_n)
    return {"weight": scaled.reshape(count, -1, *shape).sum(1), "bias": output_grad_n.reshape(count, -1, *shape).sum(1)}


_PARTS: Final[dict[type[nn.Module], Callable[[nn.Module, torch.Tensor, torch.Tensor], Parts]]] = {
    nn.Linear: _linear,
    nn.LayerNorm: _layer_norm,
}
"""By layer, the gradients of its parameters from its input and from the gradient at its output."""

_ELEMENTWISE: Final = frozenset(
    {nn.Identity, nn.ReLU, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Mish, nn.Softplus, nn.Sigmoid, nn.Tanh}
)
