"""DiLoCo's outer step: SGD with Nesterov momentum on the round's movement."""

from typing import Annotated

import torch

from p2ptrain.outer.momentum import Momentum


class Nesterov:
    """v <- alpha v + (theta' - phi); phi <- phi + beta (theta' - phi + alpha v) (DiLoCo, 2311.08105, with Delta as the
    movement: its sign is the other one).

    alpha 0.9, beta 0.7 are the paper's, for rounds of 500 steps. Unless told a strategy takes what suits the rounds of
    the run (momentum.py): a few dozen have room for plain averaging alone.
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

    def step(self, phi_d: torch.Tensor, target_d: torch.Tensor) -> torch.Tensor:
        """Return the new anchor (d,) from the old one and the averaged parameters; both stay as they are."""
        move_d = target_d - phi_d
        momentum_d = (
            move_d.clone() if self._momentum_d is None else torch.add(move_d, self._momentum_d, alpha=self.alpha)
        )
        self._momentum_d = momentum_d
        return move_d.add_(momentum_d, alpha=self.alpha).mul_(self.beta).add_(phi_d)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """`momentum`, once there was a step."""
        return {} if self._momentum_d is None else {"momentum": self._momentum_d}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        """Take up `momentum`, or none. ValueError on other names."""
        if not state.keys() <= {"momentum"}:
            raise ValueError(f"nesterov keeps 'momentum', but was given {', '.join(sorted(state))}")
        self._momentum_d = state["momentum"].clone() if "momentum" in state else None
