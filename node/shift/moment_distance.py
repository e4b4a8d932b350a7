"""One number of many moments: how far those of a round are from the mean of the first rounds'."""

from collections.abc import Sequence
from typing import Final

import torch

from p2ptrain.training.data_looks import FEATURES

ROUNDS: Final = 8
"""Rounds from which mean and spread of the moments follow. Chosen: within a round pieces differ, too."""

LEAST_SPREAD: Final = 1e-6


class MomentDistance:
    """The root mean square over moments of their distance from what was usual, in standard errors of a round."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Learn anew what is usual."""
        self._means: list[torch.Tensor] = []
        self._squares: list[torch.Tensor] = []

    def add(self, moments_nk: torch.Tensor) -> float | None:
        """Take the moments of a round's pieces, fp64 (n, k); return the distance of their mean, None while it is not
        known what is usual. None, too, without moments, of one piece alone, and of what is not finite: nothing is
        learned of these."""
        if not moments_nk.shape[1] or len(moments_nk) < 2 or not bool(moments_nk.isfinite().all()):
            return None
        mean_k = moments_nk.mean(0)
        if len(self._means) < ROUNDS:
            self._means.append(mean_k)
            self._squares.append(moments_nk.var(0) / len(moments_nk))
            return None
        usual_k, error_k = torch.stack(self._means).mean(0), torch.stack(self._squares).mean(0).sqrt()
        return float(((mean_k - usual_k) / error_k.clamp(min=LEAST_SPREAD)).square().mean().sqrt())

    def state(self) -> list[list[float]]:
        """Return what it has learned: means of rounds, then their squared errors."""
        return [it.tolist() for it in (*self._means, *self._squares)]

    def load(self, rows: Sequence[Sequence[float]]) -> None:
        """Take up `state`. Raises ValueError for what is none."""
        half = len(rows) // 2
        if len(rows) % 2 or half > ROUNDS or any(len(row) != FEATURES for row in rows):
            raise ValueError("the moments of earlier rounds are none")
        self._means, self._squares = (
            [torch.tensor(row, dtype=torch.float64) for row in part] for part in (rows[:half], rows[half:])
        )
