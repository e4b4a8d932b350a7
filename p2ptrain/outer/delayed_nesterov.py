"""Delayed Nesterov: plain steps as the rounds close, and momentum once in N of them."""

from typing import Annotated

import torch

from p2ptrain.outer.base import Move, SlicedStep
from p2ptrain.outer.momentum import Momentum

_NAMES = {"momentum", "gathered", "pushes"}


class DelayedNesterov(SlicedStep):
    """phi <- phi + beta (theta' - phi) in every round; in each N-th also m <- alpha m + mean of the last N movements,
    and phi <- phi + N beta alpha m (Async Local-SGD, 2401.09135, with c = 0).

    Momentum taken with every stale update swings. The paper lets N updates gather before they touch the momentum. There
    an update is one worker's, and moves the model by 1/N of itself; here a round's movement is a mean over its members
    already, and moves it whole: all is N times the paper's, and beta is N times its step size. N = 1 is Nesterov.
    Cost: two vectors, O(d).
    """

    name = "delayed_nesterov"
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
        every: Annotated[int, "Rounds between momentum steps."] = 4,
    ) -> None:
        if not 0 <= alpha < 1 or not 0 < beta <= 1 or every < 1:
            raise ValueError(
                "delayed_nesterov: needs 0 <= alpha < 1, 0 < beta <= 1 and every >= 1, "
                f"not alpha={alpha}, beta={beta}, every={every}"
            )
        self.alpha = alpha
        self.beta = beta
        self.every = every
        self._momentum_d: torch.Tensor | None = None
        self._gathered_d: torch.Tensor | None = None
        self._pushes = 0
        """Movements in `gathered`."""

    @property
    def momentum_d(self) -> torch.Tensor | None:
        """Return the momentum (d,), not a copy; None before there is any."""
        return self._momentum_d

    def begin_step(self, numel: int) -> Move:
        """Begin the step of a vector (numel,): return what moves each slice of the anchor, and of the buffers. In each
        N-th the movements that were gathered become the momentum."""
        gathered_d = torch.zeros(numel, dtype=torch.float32) if self._gathered_d is None else self._gathered_d
        earlier_d = self._momentum_d
        pushes = self._pushes + 1
        turns = pushes == self.every
        if turns:
            self._momentum_d, self._gathered_d, self._pushes = gathered_d, None, 0
        else:
            self._gathered_d, self._pushes = gathered_d, pushes

        def move(at: slice, phi_c: torch.Tensor, target_c: torch.Tensor) -> None:
            move_c = target_c - phi_c
            gathered_c = gathered_d[at].add_(move_c)
            if turns:
                momentum_c = gathered_c.div_(self.every)
                if earlier_d is not None:
                    momentum_c.add_(earlier_d[at], alpha=self.alpha)
                move_c.add_(momentum_c, alpha=self.every * self.alpha)
            phi_c.add_(move_c.mul_(self.beta))

        return move

    def state_dict(self) -> dict[str, torch.Tensor]:
        """`momentum` and `gathered`, as far as there are any, and how many movements are gathered, int64 (1,)."""
        kept = {"momentum": self._momentum_d, "gathered": self._gathered_d}
        state = {name: value for name, value in kept.items() if value is not None}
        return {**state, "pushes": torch.tensor([self._pushes])} if state else {}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        """Take up `state_dict`. ValueError on other names, or when what was gathered does not fit `every`."""
        if not state.keys() <= _NAMES:
            raise ValueError(f"delayed_nesterov keeps {sorted(_NAMES)}, but was given {', '.join(sorted(state))}")
        pushes = int(state["pushes"]) if "pushes" in state else 0
        if not 0 <= pushes < self.every or (pushes > 0) != ("gathered" in state):
            raise ValueError(f"delayed_nesterov: {pushes} movements were gathered, and every is {self.every}")
        self._momentum_d = state["momentum"].clone() if "momentum" in state else None
        self._gathered_d = state["gathered"].clone() if "gathered" in state else None
        self._pushes = pushes
