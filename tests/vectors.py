"""Vectors for tests of any folder."""

import torch


def vector(numel: int, *, seed: int = 0) -> torch.Tensor:
    """Gaussian, of variance 1."""
    return torch.randn(numel, generator=torch.Generator().manual_seed(seed))
