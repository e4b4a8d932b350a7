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

**The rates of a round.** Members' p sum to 0 as long as all divide their corrections, which do, by the same R. A member
that is slow takes a few of the round's steps, or one: its correction is the others' progress, and divided by the rate
of that one step it would be carried on twenty times too far, by all in the end. So R is that of a whole round of
`round_steps`, at the mean rate of the steps that were taken. Where rates end near zero, what consensus has not settled
yet of earlier rounds is more than a round's drift: R is at least 0.7 of what it was in the round before. A round in
which a member took no step at all leaves its R as it was.

**What it needs.** Corrections that are the way to the members' mean: with outer momentum, or an outer rate, one alone
would have a p, and follow it ever faster. Such an outer step is refused, and so are fragments that take turns of so
many rounds that p takes twice what it should. A codec that keeps little of the vectors there are (plain q2 on digits,
whose pixels are often 0) leaves its noise in p: take `rotated+q2`, or four bits.

**What it gains.** Under sgd steps are proportional to gradients, and the point of rest is the optimum of the members'
mean loss. Steps of adamw and muon have a length of their own, and schedule_free's model is an average of what drifts:
without drift they rest where the mean of *steps* is zero, which is somewhere else. So it gains where rounds are long,
and may lose where they are short: docs/decisions/0075 has the figures. Who averages gradients before the optimizer,
as the strategy `mime` does, has neither fault.

It acts on the model and not on the gradient, and so is never clipped.
State: one vector. Cost: one pass over it a step.
"""

from typing import Final

import torch

FORGETS: Final = 0.7
"""What R is at least, of the last round's. Chosen: differences of members fall as fast, and
rates hardly ever do."""


class Scaffold:
    """`strength` is the share of a round's correction that goes into the control variate.

    With 1 a constant drift is gone after one round, but when a correction comes a whole round late the sum swings
    without end (z^2 - z + 1 has its roots on the unit circle); 0.5 halves the drift every round, is stable at any
    overlap of up to a round, and averages the noise of several rounds.
    """

    name = "scaffold"
    round_steps = 0

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
            "rates": torch.zeros((), dtype=torch.float64),  # of the round under way, and
            "steps": torch.zeros((), dtype=torch.float64),  # how many they are
            "ended_rates": torch.zeros((), dtype=torch.float64),  # of the round that is being closed, as a whole one
            "usual_rates": torch.zeros((), dtype=torch.float64),  # R
        }

    def begin_round(self, theta_d: torch.Tensor) -> None:
        """Begin the next round at the snapshot `theta_d` (d,)."""
        rates, steps = float(self.buffers["rates"]), float(self.buffers["steps"])
        self.buffers["ended_rates"].fill_(rates * max(1.0, self.round_steps / steps) if steps else 0.0)
        self.buffers["rates"].zero_()
        self.buffers["steps"].zero_()

    def close_round(self, correction_d: torch.Tensor) -> None:
        """Take up the correction (d,) of the round that ended at the last `begin_round`."""
        usual = float(self.buffers["usual_rates"])
        if ended := float(self.buffers["ended_rates"]):  # a round without a step says nothing about rates
            usual = max(ended, FORGETS * usual)
            self.buffers["usual_rates"].fill_(usual)
        if usual:  # else no step was taken yet
            self.buffers["pull"].add_(correction_d, alpha=self.strength / usual)

    def adjust(self, grad_d: torch.Tensor, point_d: torch.Tensor) -> None:
        """Change the gradient (d,), taken at `point_d`, in place, before it is clipped: the gradient stays."""

    def nudge(self, theta_d: torch.Tensor, rate: float) -> None:
        """Move the model (d,) in place, after a step of this learning rate."""
        theta_d.add_(self.buffers["pull"], alpha=rate)
        self.buffers["rates"] += rate
        self.buffers["steps"] += 1
