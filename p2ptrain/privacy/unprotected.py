"""No privatizer: what is trained tells of the data what a model tells. The default."""

import torch

from p2ptrain.privacy.base import NormalSource, Release, Unit


class Unprotected:
    """Clips nothing and adds nothing."""

    name = "none"
    unit: Unit = "nothing"

    def factors(self, norms_n: torch.Tensor) -> torch.Tensor:
        """Return 1 for each contribution (n,)."""
        return torch.ones_like(norms_n)

    def add_noise_(self, sum_d: torch.Tensor, source: NormalSource) -> None:
        """Leave the sum (d,) as it is."""

    def release(self, *, rate: float, count: int) -> Release | None:
        """Return None."""
        return None
