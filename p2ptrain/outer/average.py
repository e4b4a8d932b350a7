"""Gossip averaging: the anchor becomes the averaged model."""

import torch

from p2ptrain.outer.base import Move, SlicedStep


class Average(SlicedStep):
    """phi <- theta'. No state, and the best choice for runs of a few dozen rounds (docs/benchmarks.md)."""

    name = "average"

    def begin_step(self, numel: int) -> Move:
        """Begin the step of a vector (numel,): each slice of the anchor becomes the target's."""
        return _follow

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Nothing."""
        return {}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        """ValueError when there is a state: it belongs to another outer optimizer."""
        if state:
            raise ValueError(f"average keeps no state, but was given {', '.join(sorted(state))}")


def _follow(at: slice, phi_c: torch.Tensor, target_c: torch.Tensor) -> None:
    phi_c.copy_(target_c)
