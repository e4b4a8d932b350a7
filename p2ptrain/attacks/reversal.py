"""Attacks that send the honest mean backwards: loud (sign flip), exactly loud enough (scaled), quieter (IPM)."""

import torch


def _backwards(honest_nd: torch.Tensor, f: int, factor: float) -> torch.Tensor:
    return (-factor * honest_nd.mean(dim=0)).expand(f, -1).clone()


class SignFlip:
    """-scale times the honest mean (scale 4: the prototype's liar, which ruins a plain mean of eight)."""

    name = "sign_flip"

    def __init__(self, *, scale: float = 4.0) -> None:
        self.scale = scale

    def __call__(self, honest_nd: torch.Tensor, f: int, generator: torch.Generator | None = None) -> torch.Tensor:
        """Return the f vectors sent, fp32 (f, d), from the honest differences (n, d)."""
        return _backwards(honest_nd, f, self.scale)


class Scaled:
    """-(h/f) times the mean of the h honest ones: the f liars together undo them, and a plain mean does not move.

    `times` makes it more (2: a plain mean goes as far backwards as the honest push it forwards) or less of that.
    """

    name = "scaled"

    def __init__(self, *, times: float = 1.0) -> None:
        self.times = times

    def __call__(self, honest_nd: torch.Tensor, f: int, generator: torch.Generator | None = None) -> torch.Tensor:
        """Return the f vectors sent, fp32 (f, d), from the honest differences (n, d)."""
        return _backwards(honest_nd, f, self.times * honest_nd.shape[0] / max(f, 1))


class InnerProduct:
    """Inner-product manipulation, or Fall of Empires (Xie et al., 1903.03936): -eps times the honest mean.

    The usual strengths are 0.1, hard to see, and 2, which is the default: with few honest inputs only that is felt.
    """

    name = "ipm"

    def __init__(self, *, eps: float = 2.0) -> None:
        self.eps = eps

    def __call__(self, honest_nd: torch.Tensor, f: int, generator: torch.Generator | None = None) -> torch.Tensor:
        """Return the f vectors sent, fp32 (f, d), from the honest differences (n, d)."""
        return _backwards(honest_nd, f, self.eps)
