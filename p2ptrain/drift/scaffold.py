"""SCAFFOLD's control variates (1910.06378) for gossip: the own data's pull away from the swarm is taken off each step.

SCAFFOLD steps by g - c_i + c: c_i is the own mean gradient of the last round, c the mean of all c_j, which a server
sends along. Without one, both are read off the round. Let R be the sum of the round's learning rates and p = c_i - c
what is added to each step per unit of its rate, so that theta - phi = R (p - mean gradient). Then

    R c_i' = R p - (theta - phi)           the own mean gradient: SCAFFOLD's option II
    R c'   = phi - phi_new                 the mean over members of the same, since their p sum to 0
    p'     = c_i' - c' = p + (phi_new - theta) / R

so p is the running sum of the rounds' corrections. With `strength` 1, plain SGD and exact averaging this is SCAFFOLD's
option II with all clients taking part and a server step of 1; it is also Scaffnew's update (ProxSkip, 2202.09357), and
with one step a round the rule of D^2 (1803.07068), which shows what averaging it needs: a mixing matrix whose
eigenvalues are all above -1/3. For a strength s the bound is -(2 - s) / (2 + s): with mixing eigenvalue l, movement and
control variate follow z^2 - (1 + l - s (1 - l)) z + l = 0. A consensus step of at most 2 / (2 + s) keeps every graph's
eigenvalues, which are above -1, within it: 0.8 for 0.5, 2/3 for 1. K(8, 8) has -0.78, and diverges without.

It acts on the model and not on the gradient, and so is right for optimizers that rescale gradients, and never clipped.
State: one vector. Cost: one pass over it a step.
"""

import torch


class Scaffold:
    """`strength` is the share of a round's correction that goes into the control variate.

    With 1 a constant drift is gone after one round, but when a correction comes a whole round late the sum swings
    without end (z^2 - z + 1 has its roots on the unit circle); 0.5 halves the drift every round, is stable at any
    overlap of up to a round, and averages the noise of several rounds.
    """

    name = "scaffold"

    def __init__(self, *, strength: float = 0.5) -> None:
        if not 0 < strength <= 1:
            raise ValueError(f"{self.name}: strength must be in (0, 1], not {strength}")
        self.strength = strength
        self.largest_gamma = 2 / (2 + strength)
        self.buffers: dict[str, torch.Tensor] = {}

    def attach(self, theta_d: torch.Tensor) -> None:
        """Work on a model like `theta_d` (d,) from now on, with the first round beginning there."""
        self.buffers = {
            "pull": torch.zeros_like(theta_d),  # p
            "rates": torch.zeros((), dtype=torch.float64),  # of the round under way
            "ended_rates": torch.zeros((), dtype=torch.float64),  # of the round that is being closed
        }

    def begin_round(self, theta_d: torch.Tensor) -> None:
        """Begin the next round at the snapshot `theta_d` (d,)."""
        self.buffers["ended_rates"].copy_(self.buffers["rates"])
        self.buffers["rates"].zero_()

    def close_round(self, correction_d: torch.Tensor) -> None:
        """Take up the correction (d,) of the round that ended at the last `begin_round`. A round without a step says
        nothing about the data."""
        if rates := float(self.buffers["ended_rates"]):
            self.buffers["pull"].add_(correction_d, alpha=self.strength / rates)

    def adjust(self, grad_d: torch.Tensor, point_d: torch.Tensor) -> None:
        """Change the gradient (d,), taken at `point_d`, in place, before it is clipped: the gradient stays."""

    def nudge(self, theta_d: torch.Tensor, rate: float) -> None:
        """Move the model (d,) in place, after a step of this learning rate."""
        theta_d.add_(self.buffers["pull"], alpha=rate)
        self.buffers["rates"] += rate
