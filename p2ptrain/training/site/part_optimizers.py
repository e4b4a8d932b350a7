"""An inner optimizer over the parts of a model that one rank holds.

Each part has an optimizer of its own, which works where the part lies: no rank has a second copy of its parts, nor of
their gradients. That is the same as one optimizer over the whole vector where each coordinate moves by itself, and so
only optimizers that say so (`elementwise`) can be taken.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from p2ptrain import inner
from p2ptrain.inner.base import InnerOptimizer, Place
from p2ptrain.tasks.base import TaskError


@dataclass
class _HeldPart:
    """One part as an optimizer sees it."""

    data_d: torch.Tensor
    grad_d: torch.Tensor
    places: Sequence[Place]
    decayed: Sequence[torch.Tensor]


class PartOptimizers:
    """One optimizer `name` for each of `parts`, whose parameters are at `places`. TaskError where it cannot be."""

    def __init__(
        self, name: str, options: dict[str, object], parts: Sequence[torch.Tensor], places: Sequence[Place]
    ) -> None:
        self._parts: list[_HeldPart] = []
        self._optimizers: list[InnerOptimizer] = []
        for local, place in zip(parts, places, strict=True):
            optimizer = inner.get(name, **options)
            if not getattr(optimizer, "elementwise", False):
                raise TaskError(
                    f"train.optimizer={name} wants whole matrices, and a rank of a site has parts of them: take adamw, "
                    "sgd or schedule_free"
                )
            data_p = local.view(-1)
            here = replace(place, span=slice(0, data_p.numel()), shape=local.shape)
            part = _HeldPart(data_p, torch.empty(0, dtype=torch.float32), [here], [local] if place.decayed else [])
            optimizer.attach(part)
            self._parts.append(part)
            self._optimizers.append(optimizer)

    @property
    def names(self) -> list[str]:
        """The names of the optimizer's buffers."""
        return list(self._optimizers[0].buffers)

    def is_counter(self, name: str) -> bool:
        """Whether a buffer is the same for all parts: a number, and no vector."""
        return self._optimizers[0].buffers[name].ndim == 0

    def buffers(self, name: str) -> list[torch.Tensor]:
        """Return this buffer of each part."""
        return [optimizer.buffers[name] for optimizer in self._optimizers]

    def points(self) -> list[torch.Tensor] | None:
        """Return where the next gradient of each part is to be taken; None: where the parts are."""
        found = [optimizer.gradient_point() for optimizer in self._optimizers]
        points = [point for point in found if point is not None]
        return points if len(points) == len(found) else None

    def step(self, gradients: Sequence[torch.Tensor], rate: float) -> None:
        """Move each part by its gradient, which may be overwritten."""
        for optimizer, part, grad in zip(self._optimizers, self._parts, gradients, strict=True):
            if part.data_d.numel():
                part.grad_d = grad.reshape(-1)
                optimizer.step(rate)
                part.grad_d = torch.empty(0, dtype=torch.float32)
