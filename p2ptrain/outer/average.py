"""Gossip averaging: the anchor becomes the averaged model."""

import torch


class Average:
    """phi <- theta'. No state, and the best choice for runs of a few dozen rounds (docs/benchmarks.md)."""

    name = "average"

    def step(self, phi_d: torch.Tensor, target_d: torch.Tensor) -> torch.Tensor:
        """Return the new anchor (d,) from the old one and the averaged parameters; both stay as they are."""
        return target_d

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Nothing."""
        return {}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        """ValueError when there is a state: it belongs to another outer optimizer."""
        if state:
            raise ValueError(f"average keeps no state, but was given {', '.join(sorted(state))}")
