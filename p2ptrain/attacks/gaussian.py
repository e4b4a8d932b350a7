"""Noise: an independent Gaussian vector from every liar."""

import torch


class Gaussian:
    """N(0, std^2) in every coordinate. std 1 dwarfs the weights (about 0.02 to 0.1) of any model trained here."""

    name = "gaussian"

    def __init__(self, *, std: float = 1.0) -> None:
        self.std = std

    def __call__(self, honest_nd: torch.Tensor, f: int, generator: torch.Generator | None = None) -> torch.Tensor:
        """Return the f vectors sent, fp32 (f, d), from the honest differences (n, d)."""
        return torch.randn(f, honest_nd.shape[1], generator=generator, dtype=torch.float32) * self.std
