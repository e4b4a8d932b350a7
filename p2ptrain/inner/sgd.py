"""Stochastic gradient descent with momentum: one state vector, and the rule that most theory is about.

    b <- mu b + g
    theta <- (1 - rate w) theta - rate (g + mu b  with Nesterov, else b)

As torch's SGD, except that the weight decay w is decoupled (1711.05101), as it is for every optimizer here. A steady
gradient is amplified 1 / (1 - mu) times. Learning rates are not AdamW's: some 0.05 to 0.5, where AdamW wants 1e-3.
"""

from collections.abc import Mapping

import torch

from p2ptrain.inner.base import Moment, Parameters, decay


class SGD:
    """State: one vector, and none with momentum 0. ValueError on a momentum outside [0, 1), or Nesterov's without it.

    Momentum 0.9 as in most of the literature. `qgm` replaces it (p2ptrain/drift): set it to 0 there. A decoupled decay
    of 0.005 is what the usual 0.0005, added to the gradient and so amplified by that momentum, comes to.
    """

    name = "sgd"
    schedule = "cosine"
    elementwise = True

    def __init__(self, *, weight_decay: float = 0.005, momentum: float = 0.9, nesterov: bool = False) -> None:
        if not 0 <= momentum < 1:
            raise ValueError(f"sgd: momentum must be in [0, 1), not {momentum}")
        if nesterov and not momentum:
            raise ValueError("sgd: nesterov needs a momentum above 0")
        self.weight_decay, self.momentum, self.nesterov = weight_decay, momentum, nesterov
        self.buffers: dict[str, torch.Tensor] = {}

    @property
    def moments(self) -> Mapping[str, Moment]:
        """What its buffers are averages of."""
        return {"momentum": Moment(order="first")} if self.momentum else {}

    def attach(self, parameters: Parameters) -> None:
        """Work on these buffers from now on. ValueError when they cannot be trained by this rule."""
        self._parameters = parameters
        if self.momentum:
            self.buffers = {"momentum": torch.zeros_like(parameters.data_d)}

    def gradient_point(self) -> None:
        """Return where the next gradient is to be taken (d,); None: at the parameters: at the parameters."""

    def step(self, rate: float) -> None:
        """Move `data_d` by `grad_d` at this learning rate."""
        decay(self._parameters, rate * self.weight_decay)
        self._parameters.data_d.add_(self._move(self._parameters.grad_d), alpha=-rate)

    def _move(self, grad_d: torch.Tensor) -> torch.Tensor:
        if not self.momentum:
            return grad_d
        momentum_d = self.buffers["momentum"].mul_(self.momentum).add_(grad_d)
        return grad_d.add_(momentum_d, alpha=self.momentum) if self.nesterov else momentum_d
