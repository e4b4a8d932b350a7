"""Attacks on the arithmetic: vectors of infinities, or of NaN. One accepted value spreads through every average."""

import torch


class Infinity:
    """+infinity in every coordinate."""

    name = "inf"

    def __call__(self, honest_nd: torch.Tensor, f: int, generator: torch.Generator | None = None) -> torch.Tensor:
        """Return the f vectors sent, fp32 (f, d), from the honest differences (n, d)."""
        return torch.full((f, honest_nd.shape[1]), torch.inf, dtype=torch.float32)


class NotANumber:
    """NaN in every coordinate."""

    name = "nan"

    def __call__(self, honest_nd: torch.Tensor, f: int, generator: torch.Generator | None = None) -> torch.Tensor:
        """Return the f vectors sent, fp32 (f, d), from the honest differences (n, d)."""
        return torch.full((f, honest_nd.shape[1]), torch.nan, dtype=torch.float32)
