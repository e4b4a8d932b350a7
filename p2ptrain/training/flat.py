"""A module's trainable parameters as one flat fp32 vector, in place.

Each parameter (and its gradient) becomes a view of a contiguous buffer, in `named_parameters` order, so that taking
the model's vector is one copy, a correction one addition, and the optimizer one kernel over all of it, whatever the
number of tensors. The model computes as before: it does not notice.
"""

import hashlib
import math
import sys
from collections.abc import Iterator, Sequence
from typing import TypeAlias

import torch
from torch import nn

from p2ptrain.inner.base import Place
from p2ptrain.protocols import implements
from p2ptrain.saved.tensor_file import InPieces
from p2ptrain.tasks.base import TaskError
from p2ptrain.training.device_copies import Gathering, add, copies_for, on_host, overwrite
from p2ptrain.training.names import canonical

DECAY_MIN_DIMENSIONS = 2
"""Tensors of fewer dimensions (norms, biases) are not decayed: pulling a scale to zero is no regularizer."""

MATRIX_DIMENSIONS = 2

Named: TypeAlias = Sequence[tuple[str, nn.Parameter]]
"""Names and parameters that are trained."""


class FlatParameters:
    """Takes a module over: its trainable parameters live in `data_d` from now on, their gradients in `grad_d`. With
    `named`, some of its parameters: these alone.

    Raises TaskError when there is nothing to train or a parameter is not a dense floating-point tensor.
    Not thread-safe.
    """

    def __init__(self, model: nn.Module, named: Named | None = None) -> None:
        named = trainable(model) if named is None else named
        self.numel = sum(parameter.numel() for _, parameter in named)
        self.data_d = torch.cat([parameter.detach().reshape(-1).float() for _, parameter in named])
        self.grad_d = torch.zeros_like(self.data_d)
        self.places = places(model, named)
        for place, (_, parameter) in zip(self.places, named, strict=True):
            parameter.data = self.data_d[place.span].view(place.shape)
            parameter.grad = self.grad_d[place.span].view(place.shape)
        self.copies = copies_for(self.data_d.device)
        """Between the model and the host. Call `settle` before anything else than this class writes to `data_d`."""
        self.decayed = [self.data_d[place.span].view(place.shape) for place in self.places if place.decayed]
        """The parameters, as views, to which weight decay applies."""

    def vector(self) -> torch.Tensor:
        """Return a copy of the parameters: fp32 (d,) on the CPU."""
        return on_host(self.copies, self.data_d)

    def snapshot(self) -> tuple[torch.Tensor, Gathering]:
        """Return what becomes a copy of the parameters as they are now, fp32 (d,) on the CPU, and its gathering."""
        x_d = torch.empty(self.numel, device="cpu", dtype=torch.float32)
        return x_d, self.copies.gather([(self.data_d, x_d)])

    def load_(self, x_d: torch.Tensor) -> None:
        """Set the parameters to `x_d` (d,). ValueError on another shape."""
        self.copies.deliver([self._checked(x_d)], [(self.data_d,)], overwrite)

    def add_(self, x_d: torch.Tensor) -> None:
        """Add `x_d` (d,) to the parameters. ValueError on another shape."""
        self.copies.deliver([self._checked(x_d)], [(self.data_d,)], add)

    def taken(self, x_d: torch.Tensor) -> torch.Tensor:
        """Return `x_d` (d,) whole, on the parameters' device; on the CPU itself. ValueError on another shape."""
        x_d = self._checked(x_d)
        if x_d.device == self.data_d.device:
            return x_d
        taken_d = torch.empty_like(self.data_d)
        self.copies.deliver([x_d], [(taken_d,)], overwrite)
        return taken_d

    def _checked(self, x_d: torch.Tensor) -> torch.Tensor:
        if x_d.shape != (self.numel,):
            raise ValueError(f"a vector of shape {tuple(x_d.shape)} does not fit a model of {self.numel} parameters")
        return x_d


def trainable(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """Names and parameters in `named_parameters` order, tied ones once. TaskError when they cannot be flattened."""
    named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    if not named:
        raise TaskError("the task's model has no trainable parameter; build_model() must return one that learns")
    for name, parameter in named:
        if not parameter.is_floating_point() or parameter.layout is not torch.strided:
            raise TaskError(
                f"parameter {name} is {parameter.dtype}, {parameter.layout}; only dense real ones can train"
            )
    return named


def places(model: nn.Module, within: Named | None = None) -> list[Place]:
    """Return where each trainable parameter lies in the flat vector, or in that of the parameters `within` alone.

    Hidden are all matrices but embeddings and the output layer. That one is the last matrix, in a model with no
    embedding; in a model with one, only if it has the same shape: else the embedding is the output layer, too.
    """
    named = trainable(model)
    embeddings = [module.weight for module in model.modules() if isinstance(module, nn.Embedding | nn.EmbeddingBag)]
    matrices = [parameter for _, parameter in named if parameter.ndim == MATRIX_DIMENSIONS]
    apart = {id(weight) for weight in embeddings}
    if matrices and (not embeddings or matrices[-1].shape in [weight.shape for weight in embeddings]):
        apart.add(id(matrices[-1]))
    found: list[Place] = []
    start = 0
    for name, parameter in named if within is None else within:
        place = Place(
            name=name,
            span=slice(start, start + parameter.numel()),
            shape=parameter.shape,
            decayed=parameter.ndim >= DECAY_MIN_DIMENSIONS,
            hidden=parameter.ndim == MATRIX_DIMENSIONS and id(parameter) not in apart,
        )
        found.append(place)
        start += parameter.numel()
    return found


_HASHED_AT_ONCE = 1 << 22
"""Values: no temporary of a matrix's size."""


def fingerprint(model: nn.Module, shared: Named | None = None) -> bytes:
    """32 bytes (BLAKE2b) over the names and shapes of the trainable parameters, or of those that are `shared`: equal
    where vectors may be averaged, however the model is wrapped."""
    digest = hashlib.blake2b(digest_size=32)
    for name, parameter in trainable(model) if shared is None else shared:
        digest.update(f"{canonical(name)}:{'x'.join(map(str, parameter.shape))}\n".encode())
    return digest.digest()


def frozen_digest(model: nn.Module) -> bytes:
    """32 bytes (BLAKE2b) over names, shapes and values of the frozen parameters; empty where there are none. Values
    count in bf16, so that members may hold one base in fp32 and bf16; what is quantized is left out, as its bits are
    the machine's."""
    digest, any_frozen = hashlib.blake2b(digest_size=32), False
    frozen = {canonical(name): each for name, each in model.named_parameters() if not each.requires_grad}
    for name, parameter in sorted(frozen.items()):
        if not parameter.is_floating_point():
            continue
        any_frozen = True
        digest.update(f"{name}:{'x'.join(map(str, parameter.shape))}\n".encode())
        flat = parameter.detach().reshape(-1)
        for start in range(0, flat.numel(), _HASHED_AT_ONCE):
            part = flat[start : start + _HASHED_AT_ONCE]
            digest.update(part.to("cpu", torch.bfloat16).view(torch.uint8).numpy().data)
    return digest.digest() if any_frozen else b""


def all_finite(x_d: torch.Tensor) -> bool:
    """Return whether all values are finite, without a temporary of their number."""
    if not x_d.numel():
        return True
    low, high = x_d.aminmax()  # NaN wins either
    return math.isfinite(low) and math.isfinite(high)


def vector_pieces(x_d: torch.Tensor) -> Iterator[bytes | memoryview]:
    """Yield `vector_bytes` in pieces, also of a vector that lies elsewhere."""
    if implements(x_d, InPieces):
        yield from x_d.pieces()
    else:
        yield vector_bytes(x_d)


def vector_bytes(x_d: torch.Tensor) -> bytes:
    """Return a vector (d,) as fp32 little-endian bytes, the same on every machine; the genesis digest is taken over
    these."""
    array = x_d.detach().to("cpu", torch.float32).contiguous().numpy()
    return array.tobytes() if sys.byteorder == "little" else array.byteswap().tobytes()
