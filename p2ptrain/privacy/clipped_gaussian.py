"""The Gaussian mechanism on clipped contributions, which `example` and `update` share."""

import math
from typing import Annotated, ClassVar

import torch

from p2ptrain.privacy.base import NormalSource, Release, Unit


class ClippedGaussian:
    """Clips each contribution to the norm `clip` and adds noise of standard deviation `noise * clip` to their sum.
    ValueError where one of them is not a finite number above 0: nothing would be protected."""

    name: ClassVar[str]
    unit: ClassVar[Unit]

    def __init__(
        self,
        *,
        noise: Annotated[float, "Standard deviation of the noise over the clipping norm, above 0."] = 1.0,
        clip: Annotated[float, "Largest norm of one contribution, above 0."] = 1.0,
    ) -> None:
        for option, value in (("noise", noise), ("clip", clip)):
            if not 0 < value < math.inf:  # false for nan, too
                raise ValueError(f"{self.name}: {option} must be a number above 0, not {value}")
        if not 0 < noise * clip < math.inf:
            raise ValueError(f"{self.name}: noise times clip must be a number above 0, not {noise * clip}")
        self.noise, self.clip = noise, clip

    def factors(self, norms_n: torch.Tensor) -> torch.Tensor:
        """Return min(1, clip / norm) of each contribution (n,); 0 of one that is not finite."""
        factors_n = torch.clamp(self.clip / norms_n.clamp_min(torch.finfo(norms_n.dtype).tiny), max=1.0)
        return torch.where(torch.isfinite(norms_n), factors_n, torch.zeros_like(factors_n))

    def add_noise_(self, sum_d: torch.Tensor, source: NormalSource) -> None:
        """Add fp64 noise to the sum (d,), in place, rounded once to the sum's own type."""
        noise_d = source.normals(sum_d.numel()).mul_(self.noise * self.clip)
        sum_d.copy_(noise_d.add_(sum_d.to("cpu")))

    def release(self, *, rate: float, count: int) -> Release:
        """Return what `count` sums of contributions drawn with probability `rate` spend."""
        return Release(mechanism=self.name, noise=self.noise, rate=rate, count=count)
