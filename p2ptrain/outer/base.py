"""What an outer optimizer is: how the averaged model moves the anchor, once a round."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Protocol, runtime_checkable

import torch

Move = Callable[[slice, torch.Tensor, torch.Tensor], None]
"""Moves a slice of the anchor: where it lies, the anchor's values there, which change in place, and the target's."""


@runtime_checkable
class OuterOptimizer(Protocol):
    """The outer step on flat fp32 vectors."""

    name: str

    def step(self, phi_d: torch.Tensor, target_d: torch.Tensor) -> torch.Tensor:
        """Return the new anchor from the old one and the averaged parameters theta'. Neither argument is changed."""

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return the buffers to be kept in a checkpoint (empty when stateless). Not copies: a step may change them."""

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        """Take up buffers from `state_dict`."""


@runtime_checkable
class BySlices(OuterOptimizer, Protocol):
    """An outer optimizer that treats every parameter by itself, and so needs no vector beside its buffers. Optional: of
    any other the whole step is made at once, with vectors for target and result."""

    def begin_step(self, numel: int) -> Move:
        """Begin the step of a vector (numel,). What is returned is called with slices that have explicit start and
        stop and cover the vector, each parameter once; together they do to the anchor what `step` does, with the same
        bits. Where the calls end early, the other parameters have not been moved."""


@runtime_checkable
class KeepsMomentum(OuterOptimizer, Protocol):
    """An outer optimizer that shows its momentum: a sum of movements, in which each counts alpha of the next one."""

    alpha: float

    @property
    def momentum_d(self) -> torch.Tensor | None:
        """Return the sum (d,), not a copy: a step may change it. None before there is any."""


class SlicedStep(ABC):
    """The common half of a member that is `BySlices`: the step of a whole vector is a single slice."""

    def step(self, phi_d: torch.Tensor, target_d: torch.Tensor) -> torch.Tensor:
        """Return the new anchor (d,) from the old one and the averaged parameters; both stay as they are."""
        moved_d = phi_d.clone()
        self.begin_step(moved_d.numel())(slice(0, moved_d.numel()), moved_d, target_d)
        return moved_d

    @abstractmethod
    def begin_step(self, numel: int) -> Move:
        """Begin the step of a vector (numel,): return what moves each slice of the anchor in place."""
