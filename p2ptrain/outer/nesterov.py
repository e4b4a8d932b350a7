"""DiLoCo's outer step: SGD with Nesterov momentum on the round's movement."""

from typing import Annotated

import torch

from p2ptrain.outer.base import Move, SlicedStep
from p2ptrain.outer.momentum import Momentum


class Nesterov(SlicedStep):
    """v <- alpha v + (theta' - phi); phi <- phi + beta (theta' - phi + alpha v) (DiLoCo, 2311.08105, with Delta as the
    movement: its sign is the other one).

    alpha 0.9, beta 0.7 are the paper's, for rounds of 500 steps. Unless told a strategy takes what suits the rounds of
    the run (momentum.py): a few dozen have room for plain averaging alone.
    A node without neighbours takes the same step on its own movement, once a round: that is SNOO, step-K Nesterov
    (2510.15830), with K = `train.inner_steps`, mu = alpha and eta = beta, and with alpha 0 Lookahead (1907.08610).
    Cost: one vector, O(d).
    """

    name = "nesterov"
    published = Momentum(alpha=0.9, beta=0.7)

    def __init__(
        self,
        *,
        alpha: Annotated[
            float, "The outer optimizer's momentum; unset: what suits the rounds of the run."
        ] = published.alpha,
        beta: Annotated[
            float, "The outer optimizer's step size; unset: what suits the rounds of the run."
        ] = published.beta,
    ) -> None:
        if not 0 <= alpha < 1 or not 0 < beta <= 1:
            raise ValueError(f"nesterov: needs 0 <= alpha < 1 and 0 < beta <= 1, not alpha={alpha}, beta={beta}")
        self.alpha = alpha
        self.beta = beta
        self._momentum_d: torch.Tensor | None = None

    @property
    def momentum_d(self) -> torch.Tensor | None:
        """Return the momentum (d,), not a copy; None before there is any."""
        return self._momentum_d

    def begin_step(self, numel: int) -> Move:
        """Begin the step of a vector (numel,): return what moves each slice of the anchor, and of the momentum."""
        if self._momentum_d is None:
            self._momentum_d = torch.zeros(numel, dtype=torch.float32)
        momentum_d = self._momentum_d

        def move(at: slice, phi_c: torch.Tensor, target_c: torch.Tensor) -> None:
            move_c, momentum_c = target_c - phi_c, momentum_d[at]
            torch.add(move_c, momentum_c, alpha=self.alpha, out=momentum_c)
            phi_c.add_(move_c.add_(momentum_c, alpha=self.alpha).mul_(self.beta))

        return move

    def state_dict(self) -> dict[str, torch.Tensor]:
        """`momentum`, once there was a step."""
        return {} if self._momentum_d is None else {"momentum": self._momentum_d}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        """Take up `momentum`, or none. ValueError on other names."""
        if not state.keys() <= {"momentum"}:
            raise ValueError(f"nesterov keeps 'momentum', but was given {', '.join(sorted(state))}")
        self._momentum_d = state["momentum"].clone() if "momentum" in state else None
