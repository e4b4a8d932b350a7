"""The inner optimizer, once more, on the model that all members have in common.

A member's own steps find where gradients are taken. What the swarm's model does is decided by the mean of all members'
gradients: it takes a round's steps with that one gradient (p2ptrain/sync/mime.py). Momenta and moments are then those
of the mean gradient, the same at all members.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch

from p2ptrain import inner
from p2ptrain.drift.none import NoCorrection
from p2ptrain.inner.base import Place
from p2ptrain.training.base import OptimizerPlace
from p2ptrain.training.train_config import TrainConfig, lr_at

TINY: Final = 1e-30
"""Stands for a gradient's norm that is 0."""


@dataclass
class _Anchor:
    """`inner.Parameters` of flat vectors that no model has."""

    data_d: torch.Tensor
    grad_d: torch.Tensor
    places: Sequence[Place]

    @property
    def decayed(self) -> Sequence[torch.Tensor]:
        """The parameters that weight decay applies to, as views of `data_d`."""
        return [self.data_d[place.span].view(place.shape) for place in self.places if place.decayed]


ONE_MATRIX: Final = OptimizerPlace(
    places=(Place(name="w", span=slice(0, 4), shape=torch.Size((2, 2)), decayed=True, hidden=True),), options={}
)
"""A model to try settings with."""


class AnchorOptimizer:
    """Takes a round's steps with one gradient. ValueError where the optimizer takes its gradients elsewhere than at the
    parameters (schedule_free), cannot train such a model, or a drift correction bends the steps.

    Memory: the parameters, a gradient, and the optimizer's buffers, on the CPU.
    """

    def __init__(
        self, config: TrainConfig, place: OptimizerPlace, *, newest: Callable[[], TrainConfig] | None = None
    ) -> None:
        """`newest` returns the settings as they are now, where they may change: rates, rounds, clipping."""
        numel = sum(each.shape.numel() for each in place.places)
        self._newest = newest or (lambda: config)
        self._anchor = _Anchor(
            torch.zeros(numel, dtype=torch.float32), torch.zeros(numel, dtype=torch.float32), place.places
        )
        self._optimizer = inner.get(config.optimizer, **{**place.options, **config.optimizer_options()})
        self._optimizer.attach(self._anchor)
        if self._optimizer.gradient_point() is not None:
            raise ValueError(f"{config.optimizer} takes gradients elsewhere than at the model: use adamw, muon or sgd")
        if config.drift != NoCorrection.name:
            raise ValueError(
                f"gradients are averaged before the step, which {config.drift} would bend: take train.drift=none"
            )

    @property
    def numel(self) -> int:
        """Return the number of parameters."""
        return self._anchor.data_d.numel()

    def steps_in(self, round: int) -> int:
        """Return how many steps the round has, by the schedule."""
        return self._newest().steps_in(round)

    @property
    def longest(self) -> float:
        """Return the largest norm of a gradient, by which longer ones are clipped; infinity where none are."""
        return self._newest().clip_norm or math.inf

    @property
    def buffers(self) -> Mapping[str, torch.Tensor]:
        """The optimizer's whole state, by name. Changed in place."""
        return self._optimizer.buffers

    def advance_(self, x_d: torch.Tensor, gradient_d: torch.Tensor, round: int) -> None:
        """Move the model `x_d` (d,) in place by as many steps as a round has, all with `gradient_d` (d,), clipped.
        Where its norm is no number nothing moves."""
        norm = float(torch.linalg.vector_norm(gradient_d))
        if not math.isfinite(norm):
            return
        config, share = self._newest(), min(1.0, self.longest / max(norm, TINY))
        self._anchor.data_d.copy_(x_d)
        for step in range(config.first_step(round), config.first_step(round + 1)):
            torch.mul(gradient_d, share, out=self._anchor.grad_d)  # a step may overwrite it
            self._optimizer.step(lr_at(step, config.total_steps, config))
        x_d.copy_(self._anchor.data_d)

    def load(self, buffers: Mapping[str, torch.Tensor]) -> None:
        """Take up `buffers`. ValueError when they are another optimizer's or model's."""
        shapes = {name: buffer.shape for name, buffer in buffers.items()}
        if shapes != {name: buffer.shape for name, buffer in self.buffers.items()}:
            raise ValueError(f"the optimizer's state is not that of {self._optimizer.name} for this model")
        for name, buffer in buffers.items():
            self.buffers[name].copy_(buffer)
