"""NoLoCo's momentum: the anchor moves by a running sum of past moves, with no all-reduce behind it."""

from typing import Annotated

import torch

from p2ptrain.outer.base import Move, SlicedStep
from p2ptrain.outer.momentum import Momentum


class NoLoCo(SlicedStep):
    """delta <- alpha delta + beta (theta' - phi); phi <- phi + delta (NoLoCo, 2506.10911, with gamma = beta).

    alpha 0.5, beta 0.7 are the paper's; runs of fewer than 200 rounds take less (momentum.py). Gossip is stable only
    for alpha < beta < sqrt(2 + alpha^2), so DiLoCo's 0.9 with 0.7 is refused.
    """

    name = "noloco"
    published = Momentum(alpha=0.5, beta=0.7)

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
        if not 0 <= alpha < beta < (2 + alpha**2) ** 0.5:
            raise ValueError(f"noloco: needs 0 <= alpha < beta < sqrt(2 + alpha^2), not alpha={alpha}, beta={beta}")
        self.alpha = alpha
        self.beta = beta
        self._delta_d: torch.Tensor | None = None

    def begin_step(self, numel: int) -> Move:
        """Begin the step of a vector (numel,): return what moves each slice of the anchor, and of the momentum."""
        if self._delta_d is None:
            self._delta_d = torch.zeros(numel, dtype=torch.float32)
        delta_d = self._delta_d

        def move(at: slice, phi_c: torch.Tensor, target_c: torch.Tensor) -> None:
            delta_c = delta_d[at]
            torch.add((target_c - phi_c).mul_(self.beta), delta_c, alpha=self.alpha, out=delta_c)
            phi_c.add_(delta_c)

        return move

    def state_dict(self) -> dict[str, torch.Tensor]:
        """`delta`, once there was a step."""
        return {} if self._delta_d is None else {"delta": self._delta_d}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        """Take up `delta`, or none. ValueError on other names."""
        if not state.keys() <= {"delta"}:
            raise ValueError(f"noloco keeps 'delta', but was given {', '.join(sorted(state))}")
        self._delta_d = state["delta"].clone() if "delta" in state else None
