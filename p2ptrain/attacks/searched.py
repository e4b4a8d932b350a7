"""IPM and ALIE with the strength that hurts most: the liar runs the victim's aggregator and searches along a line.

IPM sends -factor * mean, ALIE mean - factor * spread. Some factor, which no formula gives, moves the output furthest:
with more the lie is trimmed, clipped or not selected. The search tries the fixed attack's own factor and those of
LADDER, and then closes in on the best, so that it never does worse than the fixed attack (by the aggregator that it is
given). A peak between two rungs, before a cliff, is met within some percent. Tuning a lie against the real defence is
Shejwalkar and Houmansadr's (NDSS 2021).

Cost: about 30 runs of the aggregator on (n + f, d).
"""

from collections.abc import Callable
from functools import cache

import torch

from p2ptrain import aggregate
from p2ptrain.attacks.alie import sheltered_z
from p2ptrain.attacks.reversal import InnerProduct

Defence = Callable[[torch.Tensor], torch.Tensor]
"""An aggregator as the liar sees it: (n, d) to (d,)."""

RATIO = 2**0.5
LADDER = tuple(RATIO**power for power in range(-6, 13))
"""Factors tried first, 1/8 to 64, near enough to each other to find one of several tops. IPM's usual ones are 0.1 and
2; against a mean, which only ever moves further, 64 ruins all."""
HALVINGS = 5
"""Steps of closing in: the last one is 1.1% of the factor."""


def strongest(moved: Callable[[float], float], start: float) -> float:
    """Return the factor with the largest `moved` among `start`, LADDER, and what lies around the best of them."""
    moved = cache(moved)
    best = max((start, *LADDER), key=moved)
    step = RATIO
    for _ in range(HALVINGS):
        step **= 0.5
        best = max((best, best * step, best / step), key=moved)
    return best


class _Searched:
    def __init__(self, *, defence: Defence | str = "trimmed_mean") -> None:
        if isinstance(defence, str):
            aggregate.get(defence, f=0)  # a name that there is not is said now
        self.defence = defence

    def _search(
        self, honest_nd: torch.Tensor, f: int, lie: Callable[[float], torch.Tensor], start: float
    ) -> torch.Tensor:
        """f copies of the strongest lie, by its factor; of that with the factor `start` where there is no defence."""
        mean_d = honest_nd.mean(dim=0)
        rule = rule_for(self.defence, honest_nd.shape[0], f)

        def moved(factor: float) -> float:
            assert rule is not None
            away_d = rule(torch.cat([honest_nd, lie(factor).expand(f, -1)])) - mean_d
            distance = float(torch.linalg.vector_norm(away_d, dtype=torch.float64))
            return distance if distance == distance else 0.0  # NaN: the defence broke, which is no movement

        return lie(strongest(moved, start) if rule else start).expand(f, -1).clone()


def rule_for(defence: Defence | str, n: int, f: int) -> Defence | None:
    """Return the defence itself, or the aggregator of that name with the largest f that n + f vectors allow, as a node
    has it; None when they are too few for any."""
    if not isinstance(defence, str):
        return defence
    rules = (aggregate.get(defence, f=held) for held in range(f, -1, -1))
    return next((rule for rule in rules if n + f >= rule.minimum()), None)


class SearchedInnerProduct(_Searched):
    """IPM (1903.03936) with the eps that moves `defence` furthest from the honest mean.

    `defence` is a callable, such as `aggregate.get("krum", f=2)`, or a name, built with the number of liars.
    """

    name = "searched_ipm"

    def __call__(self, honest_nd: torch.Tensor, f: int, generator: torch.Generator | None = None) -> torch.Tensor:
        """Return the f vectors sent, fp32 (f, d), from the honest differences (n, d)."""
        mean_d = honest_nd.mean(dim=0)
        return self._search(honest_nd, f, lambda eps: -eps * mean_d, InnerProduct().eps)


class SearchedALIE(_Searched):
    """ALIE (1902.06156) with the z that moves `defence` furthest from the honest mean. `defence`: as above."""

    name = "searched_alie"

    def __call__(self, honest_nd: torch.Tensor, f: int, generator: torch.Generator | None = None) -> torch.Tensor:
        """Return the f vectors sent, fp32 (f, d), from the honest differences (n, d)."""
        mean_d, spread_d = honest_nd.mean(dim=0), honest_nd.std(dim=0, correction=0)
        start = sheltered_z(honest_nd.shape[0] + f, f)
        return self._search(honest_nd, f, lambda z: mean_d - z * spread_d, start)
