"""ClippedGossip: follow every neighbour, and none farther than a limit."""

import math
from typing import Annotated

import torch

from p2ptrain.aggregate.centered_clipping import check_tau, clip_factor
from p2ptrain.aggregate.gossip import GossipRule, Neighbours


class ClippedGossip(GossipRule):
    """x + sum_j w_j d_j min(1, tau / ||d_j||) (He, Karimireddy and Jaggi, 2202.01545); it can be weighted.

    `tau` None is the paper's adaptive choice: tau^2 = (1/b) sum of w_j ||d_j||^2 over the nearest neighbours, up to
    weight W - b. With f = 0 nothing is clipped. `tau_times` above 1 follows farther what one member alone has learned,
    and a liar as well: for where what opposes is taken back first (sync/heloco.py, decision 115).

    Guarantee: liars move x by b tau at most, and the adaptive b tau is at most tau_times the root of b times the
    weighted squared distances to the honest neighbours. Breakdown by the graph: topology.py. Inputs that are not finite
    are not followed.
    Cost: one Gram matrix, O(n^2 d), and a weighted sum.
    """

    name = "clipped_gossip"

    def __init__(
        self,
        *,
        f: int = 1,
        tau: Annotated[float | None, "How far a vector is followed; None: an adaptive choice."] = None,
        tau_times: Annotated[float, "Times the adaptive choice that a vector is followed, above 0."] = 1.0,
    ) -> None:
        super().__init__(f=f)
        check_tau(self.name, tau)
        if not 0 < tau_times < math.inf:
            raise ValueError(f"{self.name}: tau_times must be a positive number, not {tau_times}")
        if tau is not None and tau_times != 1:
            raise ValueError(f"{self.name}: tau_times is of the adaptive choice, and tau = {tau:g} is none: set one")
        self.tau = tau
        self.tau_times = tau_times

    def _follow(self, others: Neighbours) -> torch.Tensor:
        return clip_factor(others.distance_j, self._adapted(others) * self.tau_times if self.tau is None else self.tau)

    def _adapted(self, others: Neighbours) -> float:
        if others.liars == 0:
            return torch.inf
        near_j = others.within(float(others.weight_j.sum()) - others.liars) * others.weight_j
        squares_j = torch.where(near_j > 0, others.distance_j.square(), 0)
        return math.sqrt(float((near_j * squares_j).sum()) / others.liars)
