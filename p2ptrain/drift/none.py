"""No drift correction: local steps as they are. The default, and right where nodes hold like data."""

import torch


class NoCorrection:
    """Does nothing and keeps nothing."""

    name = "none"
    largest_gamma = 1.0

    def __init__(self) -> None:
        self.buffers: dict[str, torch.Tensor] = {}

    def attach(self, theta_d: torch.Tensor) -> None:
        """Work on a model like `theta_d` (d,) from now on, with the first round beginning there."""

    def begin_round(self, theta_d: torch.Tensor) -> None:
        """Begin the next round at the snapshot `theta_d` (d,)."""

    def close_round(self, correction_d: torch.Tensor) -> None:
        """Take up the correction (d,) of the round that ended at the last `begin_round`."""

    def adjust(self, grad_d: torch.Tensor, point_d: torch.Tensor) -> None:
        """Change the gradient (d,), taken at `point_d`, in place, before it is clipped."""

    def nudge(self, theta_d: torch.Tensor, rate: float) -> None:
        """Move the model (d,) in place, after a step of this learning rate."""
