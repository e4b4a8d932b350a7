"""Differential privacy of a whole member by noise in its group's sum: what is protected is all it learns in a round."""

import torch

from p2ptrain.privacy.base import NormalSource, Release
from p2ptrain.privacy.clipped_gaussian import ClippedGaussian
from p2ptrain.privacy.noise_shares import accounted_noise


class SumLevel(ClippedGaussian):
    """Kairouz, Liu, Steinke, 2102.06387: the move of a round is clipped, and noised only under the masks of a secure
    sum (noise_shares.py), by each member with a share. It protects against all who see the sums, and not in this
    process: the model here has own moves in it until a round replaces them."""

    name = "secure_update"
    unit = "sum"

    def add_noise_(self, sum_d: torch.Tensor, source: NormalSource) -> None:
        """Leave the sum (d,) as it is: the strategy adds whole numbers to whole numbers."""

    def release(self, *, rate: float, count: int) -> Release:
        """Return what `count` sums spend."""
        return Release(mechanism=self.name, noise=accounted_noise(self.noise), rate=rate, count=count)
