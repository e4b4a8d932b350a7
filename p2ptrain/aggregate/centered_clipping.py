"""Centered clipping: everybody pulls the estimate towards itself, and nobody harder than a limit."""

import math
from collections.abc import Sequence
from typing import Annotated

import torch

from p2ptrain.aggregate.geometric import WeightedGeometricRule, mean_of
from p2ptrain.aggregate.geometry import Geometry


class CenteredClipping(WeightedGeometricRule):
    """v <- v + mean_i (x_i - v) min(1, tau / ||x_i - v||), `steps` times (Karimireddy, He and Jaggi, 2012.10333); it
    can be weighted.

    `tau` None: in each step the median distance from v, which f < n/2 liars cannot raise above the largest honest one.
    The paper starts at the last round's output. This rule has no memory: v starts at the mean of the n - f inputs that
    stand closest together.

    Guarantee: with n >= 2f + 1 a liar moves v by tau / n in a step at most. The paper proves its bounds for f <= 0.1 n
    and tau chosen by the honest variance; with the median distance the clipped pull of the honest majority wins.
    Breakdown point 1/2. Inputs that are not finite are left out.
    Cost: one Gram matrix, O(n^2 d), and a weighted sum.
    """

    name = "centered_clipping"
    clipped: Sequence[int] = ()
    """The rows that the newest call did not follow in full, in ascending order: as of the last step."""

    def __init__(
        self,
        *,
        f: int = 1,
        tau: Annotated[float | None, "How far a vector is followed; None: an adaptive choice."] = None,
        steps: Annotated[int, "How often the centre is sought anew."] = 10,
    ) -> None:
        super().__init__(f=f)
        check_tau(self.name, tau)
        if steps < 1:
            raise ValueError(f"{self.name}: steps must be 1 or more, not {steps}")
        self.tau = tau
        self.steps = steps

    def minimum(self) -> int:
        """2f + 1: the honest are more than the liars."""
        return 2 * self.f + 1

    def weigh_shares(self, geometry: Geometry, share_n: torch.Tensor) -> torch.Tensor:
        """Return a weight for each row, float64 (n,), from geometry and shares."""
        weight_n = mean_of(geometry.closest(geometry.n - self.f), geometry.n)
        for _ in range(self.steps):
            distance_n = geometry.squares_to(weight_n).sqrt()
            tau = float(distance_n.median()) if self.tau is None else self.tau
            factor_n = clip_factor(distance_n, tau)
            pull_n = share_n * factor_n
            weight_n = weight_n * (1 - pull_n.sum()) + pull_n
        self.clipped = torch.nonzero(factor_n < 1).flatten().tolist()
        return weight_n


def clip_factor(distance_n: torch.Tensor, tau: float) -> torch.Tensor:
    """min(1, tau / distance); 1 at distance 0, and 0 at infinite distance, where there is no direction to go in."""
    factor_n = (tau / distance_n).clamp(max=1.0)
    factor_n[distance_n == 0] = 1.0
    factor_n[distance_n == torch.inf] = 0.0
    return factor_n


def check_tau(name: str, tau: float | None) -> None:
    """ValueError unless it is None or a positive number."""
    if tau is not None and not (math.isfinite(tau) and tau > 0):
        raise ValueError(f"{name}: tau must be a positive number, or None for an adaptive one, not {tau}")
