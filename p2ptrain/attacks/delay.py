"""Delay: an update that is announced as this round's, and is old."""

from collections import deque

import torch


class Delay:
    """Publishes the liar's own honest model of `rounds` rounds ago, under the current round's number.

    It is what an honest node on a slow machine would hold, so that staleness weights, which go by the number that the
    sender signs, do not apply: only aggregation can bound it. While there is no such old model, the oldest one.
    Memory: `rounds` + 1 vectors.
    """

    name = "delay"

    def __init__(self, *, rounds: int = 4) -> None:
        if rounds < 1:
            raise ValueError(f"delay: rounds must be at least 1, not {rounds}")
        self.rounds = rounds
        self._past: deque[torch.Tensor] = deque(maxlen=rounds + 1)

    def say(self, theta_d: torch.Tensor) -> torch.Tensor:
        """Return the model published in place of `theta_d`, fp32 (d,)."""
        self._past.append(theta_d.clone())
        return self._past[0]
