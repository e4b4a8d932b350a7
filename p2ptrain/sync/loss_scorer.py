"""Scores a vector: the loss, on own data, of the model that it would make. For an aggregator that asks (zeno).

An aggregator sees movements, not models, and of a fragment only that fragment. The scorer knows what they are added to.
All vectors of a round are tried on the same data, and every round on other data.
"""

from collections.abc import Callable
from typing import Protocol, runtime_checkable

import torch

from p2ptrain.sync.fragments import Fragment

Judge = Callable[[torch.Tensor, int], float]
"""Mean loss of a model fp32 (d,) on the local data of a round; lower is better."""


@runtime_checkable
class Scored(Protocol):
    """A strategy that can score models on own data."""

    def judge_by(self, judge: Judge) -> None:
        """Score models by `judge` from now on."""


class LossScorer:
    """Begun once a round, and moved by the mixing to where the vectors start. Aggregators then call `score`."""

    def __init__(self, numel: int) -> None:
        self.judge: Judge | None = None
        self._part = Fragment(numel)
        self._model_d = self._base_p = torch.empty(0, dtype=torch.float32)
        self._round = 0

    def begin(self, model_d: torch.Tensor, part: Fragment, round: int) -> None:
        """Begin a round that averages `part` of `model_d` (d,)."""
        self._model_d, self._part, self._round = model_d, part, round
        self._base_p = part.of(model_d)

    def end(self) -> None:
        """End the round: the model is let go."""
        self._model_d = self._base_p = torch.empty(0, dtype=torch.float32)

    def start_from(self, base_p: torch.Tensor) -> None:
        """What the aggregator's vectors are added to, where that is not the part of the model itself."""
        self._base_p = base_p

    def score(self, move_p: torch.Tensor) -> float:
        """Return the loss of the model that a movement (p,) makes."""
        assert self.judge is not None, "build gives one to every strategy whose aggregator asks"
        return self.judge(self._part.put(self._model_d, self._base_p + move_p), self._round)
