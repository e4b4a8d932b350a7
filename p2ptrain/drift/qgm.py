"""Quasi-global momentum (Lin et al., 2102.04761): momentum along the way that the swarm went, not the own gradients.

    theta <- theta - rate (g + b m)        m stays throughout the round
    m <- b m + (1 - b) (phi - phi_new) / (the sum of the round's learning rates)

The anchor's movement is a mean over the neighbourhood, so that m hardly sees the own data. It takes the place of the
inner momentum: use `sgd` with momentum 0, where one step a round makes this the paper's QG-DSGDm. A steady gradient is
amplified 1 / (1 - b) times, so on top of AdamW's own momentum the learning rate has to be that much smaller; and that
takes some 1 / (1 - b)^2 rounds to build up, so a run needs hundreds of rounds at 0.9. Momentum Tracking has the
stronger theory (momentum_tracking.py): unlike data do not slow it down.

State: three vectors. Cost: one pass over one of them a step, and over all of them a round.
"""

import torch


class QuasiGlobalMomentum:
    """`strength` is b: 0.9, the paper's, which weighs the running mean and the step with the same number."""

    name = "qgm"
    largest_gamma = 1.0

    def __init__(self, *, strength: float = 0.9) -> None:
        if not 0 <= strength < 1:
            raise ValueError(f"qgm: strength must be in [0, 1), not {strength}")
        self.strength = strength
        self.buffers: dict[str, torch.Tensor] = {}

    def attach(self, theta_d: torch.Tensor) -> None:
        """Work on a model like `theta_d` (d,) from now on, with the first round beginning there."""
        self.buffers = {
            "momentum": torch.zeros_like(theta_d),
            "anchor": theta_d.clone(),
            "moved": torch.zeros_like(theta_d),  # theta - phi of the round that is being closed
            "rates": torch.zeros((), dtype=torch.float64),
            "ended_rates": torch.zeros((), dtype=torch.float64),
        }

    def begin_round(self, theta_d: torch.Tensor) -> None:
        """Begin the next round at the snapshot `theta_d` (d,)."""
        torch.sub(theta_d, self.buffers["anchor"], out=self.buffers["moved"])
        self.buffers["anchor"].copy_(theta_d)
        self.buffers["ended_rates"].copy_(self.buffers["rates"])
        self.buffers["rates"].zero_()

    def close_round(self, correction_d: torch.Tensor) -> None:
        """Take up the correction (d,) of the round that ended at the last `begin_round`. A round without a step says
        nothing about the way."""
        self.buffers["anchor"].add_(correction_d)
        if rates := float(self.buffers["ended_rates"]):
            share = (1 - self.strength) / rates
            momentum_d = self.buffers["momentum"].mul_(self.strength)
            momentum_d.sub_(self.buffers["moved"], alpha=share).sub_(correction_d, alpha=share)

    def adjust(self, grad_d: torch.Tensor, point_d: torch.Tensor) -> None:
        """Change the gradient (d,), taken at `point_d`, in place, before it is clipped: the gradient stays."""

    def nudge(self, theta_d: torch.Tensor, rate: float) -> None:
        """Move the model (d,) in place, after a step of this learning rate."""
        theta_d.sub_(self.buffers["momentum"], alpha=rate * self.strength)
        self.buffers["rates"] += rate
