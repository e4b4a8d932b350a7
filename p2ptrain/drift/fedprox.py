"""FedProx (1812.06127): the local loss plus strength / 2 ||theta - anchor||^2, whose gradient is added to each step's.

    g <- g + strength (theta - anchor)

Local steps are held near the round's anchor: less drift, and less progress. It biases towards the anchor and removes no
drift, so that its fixed point is not the optimum of the mean loss. State: one vector. Cost: one pass over it a step.
"""

import torch


class FedProx:
    """`strength` is the paper's mu, tuned there over 0.001 to 1. ValueError when it is negative.

    The term is part of the gradient: it is clipped with it, and an adaptive optimizer rescales it.
    """

    name = "fedprox"
    largest_gamma = 1.0

    def __init__(self, *, strength: float = 0.01) -> None:
        if not 0 <= strength < float("inf"):
            raise ValueError(f"fedprox: strength must be a number >= 0, not {strength}")
        self.strength = strength
        self.buffers: dict[str, torch.Tensor] = {}

    def attach(self, theta_d: torch.Tensor) -> None:
        """Work on a model like `theta_d` (d,) from now on, with the first round beginning there."""
        self.buffers = {"anchor": theta_d.clone()}

    def begin_round(self, theta_d: torch.Tensor) -> None:
        """Begin the next round at the snapshot `theta_d` (d,)."""
        self.buffers["anchor"].copy_(theta_d)

    def close_round(self, correction_d: torch.Tensor) -> None:
        """Take up the correction (d,) of the round that ended at the last `begin_round`."""
        self.buffers["anchor"].add_(correction_d)

    def adjust(self, grad_d: torch.Tensor, point_d: torch.Tensor) -> None:
        """Change the gradient (d,), taken at `point_d`, in place, before it is clipped."""
        grad_d.add_(point_d - self.buffers["anchor"], alpha=self.strength)

    def nudge(self, theta_d: torch.Tensor, rate: float) -> None:
        """Move the model (d,) in place, after a step of this learning rate."""
