"""What the gossip rules share: row 0 is the node's own vector x, which it trusts, and the others only move it.

With d_j = x_j - x, w_j the weight of neighbour j, all weights 1 with the own one, W that of the neighbours, and b the
most that f of them have, a rule says how much of each d_j it follows: x + sum_j w_j c_j d_j. What it does not follow
stays with x, so that honest nodes' steps still nearly cancel out and their mean hardly moves.

Whether such steps lead to consensus depends on the graph as well as on n and f: topology.py.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from p2ptrain.aggregate.geometric import WeightedGeometricRule
from p2ptrain.aggregate.geometry import Geometry


@dataclass(frozen=True)
class Neighbours:
    """The others, nearest first. Float64."""

    distance_j: torch.Tensor
    """||d_j||; infinite for the lost."""
    weight_j: torch.Tensor
    liars: float
    """b: the weight of the f heaviest."""

    def within(self, weight: float) -> torch.Tensor:
        """Of each one's weight the share (j,) that lies within so much weight from the nearest on."""
        before_j = self.weight_j.cumsum(0) - self.weight_j
        return ((weight - before_j) / self.weight_j).clamp(0, 1).nan_to_num(nan=1.0)  # a weight of 0 is within


class GossipRule(WeightedGeometricRule):
    """A rule for the own vector, in row 0, and the neighbours' vectors."""

    own_first = True
    clipped: Sequence[int] = ()
    """The rows that the newest call did not follow in full, in ascending order."""

    def minimum(self) -> int:
        """2f + 1, own vector included: of the others at least half are honest."""
        return 2 * self.f + 1

    def weigh_shares(self, geometry: Geometry, share_n: torch.Tensor) -> torch.Tensor:
        """Return a weight for each row, float64 (n,), from geometry and shares."""
        distance_j, order = geometry.squares()[0, 1:].sqrt().sort(stable=True)
        liars = float(share_n[1:].sort(descending=True).values[: self.f].sum())
        followed_j = self._follow(Neighbours(distance_j, share_n[1:][order], liars))
        self.clipped = sorted((1 + order[(followed_j < 1) | (distance_j == torch.inf)]).tolist())
        weight_n = torch.zeros(geometry.n, dtype=torch.float64)
        weight_n[1 + order] = (share_n[1:][order] * followed_j).masked_fill(distance_j == torch.inf, 0)
        weight_n[0] = 1 - weight_n.sum()
        return weight_n

    @abstractmethod
    def _follow(self, others: Neighbours) -> torch.Tensor:
        """c_j in [0, 1] for each neighbour."""
