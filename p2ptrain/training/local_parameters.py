"""The parameters that a node trains for itself alone: a head (FedPer, 1912.00818; FedRep, 2102.07078), norms (FedBN,
2102.07623), or whatever `train.local` names.

They are no part of the flat vector that members average: not of its length, of the run's fingerprint, nor of any byte
that is sent. They have a flat vector and an optimizer of their own, and stand in checkpoints under their own names,
beside buffers and frozen parameters, so that a model is exported whole.
"""

from collections.abc import Collection, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Final

import torch
from torch import nn

from p2ptrain.inner.base import InnerOptimizer
from p2ptrain.tasks.base import TaskError
from p2ptrain.training.device_copies import on_host
from p2ptrain.training.flat import FlatParameters, Named, trainable
from p2ptrain.training.layout import layout_of
from p2ptrain.training.model import bind_parameters
from p2ptrain.training.names import canonical

LOCAL_PREFIX: Final = "local."
"""Before the names of the local optimizer's buffers in a trainer's state."""


def is_local(name: str, patterns: Collection[str]) -> bool:
    """Return whether one of the patterns (`*`, `?` and `[...]` as in file names) is of the parameter `name`, whatever
    its model is wrapped in.

    >>> is_local("module.head.weight", ["head.*"]), is_local("header.weight", ["head.*"])
    (True, False)
    """
    return any(fnmatchcase(canonical(name), pattern) for pattern in patterns)


def shared_and_local(model: nn.Module, patterns: Sequence[str]) -> tuple[Named, Named]:
    """Return the trained parameters that members average, and those that the patterns make a node's own. TaskError for
    a pattern of no parameter, and for patterns that leave nothing to average."""
    named = trainable(model)
    for pattern in patterns:
        if not any(is_local(name, [pattern]) for name, _ in named):
            few = ", ".join(canonical(name) for name, _ in (named[0], named[-1]))
            raise TaskError(f"train.local: no trained parameter is called {pattern!r}; they run from {few}")
    shared = [each for each in named if not is_local(each[0], patterns)]
    if not shared:
        raise TaskError(f"train.local={list(patterns)} takes all parameters: there is nothing to average")
    return shared, [each for each in named if is_local(each[0], patterns)]


class LocalParameters:
    """The local ones of `model`, which this takes over. TaskError for a model whose state cannot be kept by its names:
    a node that went on would have lost them."""

    def __init__(self, model: nn.Module, shared: Named, local: Named, optimizer: InnerOptimizer) -> None:
        self.names = tuple(name for name, _ in local)
        self._shared = frozenset(name for name, _ in shared)
        self.flat = FlatParameters(model, local)
        if layout_of(model, shared) is None:
            raise TaskError("train.local: the model's state_dict is not made of its parameters by their names")
        self.optimizer = optimizer
        optimizer.attach(self.flat)

    @property
    def shapes(self) -> Mapping[str, torch.Size]:
        """Return the shapes of the parameters, by name."""
        return {place.name: place.shape for place in self.flat.places}

    @property
    def buffers(self) -> Mapping[str, torch.Tensor]:
        """Return the optimizer's state, by the names that it has in a trainer's."""
        return {LOCAL_PREFIX + name: tensor for name, tensor in self.optimizer.buffers.items()}

    def vector(self) -> torch.Tensor:
        """Return a copy of the parameters, fp32 (l,) on the CPU."""
        return on_host(self.flat.copies, self.flat.data_d)

    def bind(self, x_d: torch.Tensor, local_l: torch.Tensor, model: nn.Module) -> nn.Module:
        """Return `model`, another one like that which was taken over, with its shared parameters made views of `x_d`
        (d,) and its local ones of `local_l` (l,). ValueError on another shape."""
        named = trainable(model)
        bind_parameters(x_d, model, [each for each in named if each[0] in self._shared])
        return bind_parameters(local_l, model, [each for each in named if each[0] not in self._shared])

    def check(self, untrained: Mapping[str, torch.Tensor]) -> None:
        """ValueError unless a state's tensors by name have all local parameters: one that was trained with others
        shared does not go on here."""
        for name, shape in self.shapes.items():
            if name not in untrained or untrained[name].shape != shape:
                raise ValueError(f"it has no local parameter {name} of shape {tuple(shape)}: train.local was another")
