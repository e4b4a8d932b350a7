"""A little is enough: stand as far from the honest mean as the honest ones' own spread can hide."""

import math
from statistics import NormalDist

import torch

LEAST_Z = 1.0
"""Used where the recipe gives less: with few liars it promises no shelter at all (z <= 0, which would be no attack).
One deviation is more than most honest ones stand off."""


def sheltered_z(n: int, f: int) -> float:
    """Return how many deviations off f of n may stand and still have a majority beside them: Phi^-1((n-f-s)/(n-f)).

    s = floor(n/2 + 1) - f is how many honest ones must be fooled. Not below LEAST_Z.
    """
    share = (n - f - (math.floor(n / 2 + 1) - f)) / (n - f)
    return max(LEAST_Z, NormalDist().inv_cdf(share)) if 0 < share < 1 else LEAST_Z


class ALittleIsEnough:
    """mean - z std in every coordinate (Baruch et al., 1902.06156). `z` None: from the numbers of honest and liars."""

    name = "alie"

    def __init__(self, *, z: float | None = None) -> None:
        self.z = z

    def __call__(self, honest_nd: torch.Tensor, f: int, generator: torch.Generator | None = None) -> torch.Tensor:
        """Return the f vectors sent, fp32 (f, d), from the honest differences (n, d)."""
        z = sheltered_z(honest_nd.shape[0] + f, f) if self.z is None else self.z
        lie_d = honest_nd.mean(dim=0) - z * honest_nd.std(dim=0, correction=0)
        return lie_d.expand(f, -1).clone()
