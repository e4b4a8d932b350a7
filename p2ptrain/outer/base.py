"""What an outer optimizer is: how the averaged model moves the anchor, once a round."""

from typing import Protocol, runtime_checkable

import torch


@runtime_checkable
class OuterOptimizer(Protocol):
    """The outer step on flat fp32 vectors."""

    name: str

    def step(self, phi_d: torch.Tensor, target_d: torch.Tensor) -> torch.Tensor:
        """Return the new anchor from the old one and the averaged parameters theta'. Neither argument is changed."""

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return the buffers to be kept in a checkpoint (empty when stateless)."""

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        """Take up buffers from `state_dict`."""
