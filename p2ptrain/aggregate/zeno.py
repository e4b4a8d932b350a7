"""Zeno: try every vector on data of one's own, and average those that do best."""

import math
from collections.abc import Callable

import torch

from p2ptrain.aggregate.base import Columns, Rows
from p2ptrain.aggregate.columns import Work, new_vector, parts, sweep, width_for
from p2ptrain.aggregate.geometric import mean_of
from p2ptrain.aggregate.geometry import sums, weighted_sum
from p2ptrain.aggregate.rule import Rule
from p2ptrain.registry import BadOptionError

Score = Callable[[torch.Tensor], float]
"""How bad a vector (d,) is: the loss on a local batch of the model that it is, or that it makes. Lower is better."""


class Zeno(Rule):
    """The mean of the n - f vectors with the lowest `score` (after Xie, Koyejo and Gupta, 1805.10032, who add a penalty
    for length to the loss; a score may do so too). Not to be had by name alone: it needs `score`. A node gives it the
    loss, on a batch of its own data, of the model that a vector makes (sync/loss_scorer.py).

    Guarantee: no vector is averaged whose score is worse than the worst honest one's. It needs no honest majority,
    only n >= f + 1; and it is as good as the score: on a one-sided batch honest vectors from other data score badly.
    Vectors that are not finite are not scored, and a score that is NaN counts as infinitely bad.
    Cost: n calls of `score`, one vector of memory, and two passes, O(n d).
    """

    name = "zeno"
    breakdown = 1.0

    def __init__(self, *, f: int = 1, score: Score | None = None) -> None:
        super().__init__(f=f)
        if score is None:
            raise BadOptionError(
                "zeno needs the option score, a callable that takes a vector (d,) and returns its loss on a local "
                "batch; a name alone cannot say it"
            )
        self.score = score

    def minimum(self) -> int:
        """f + 1: one honest vector."""
        return self.f + 1

    def by_columns(self, rows: Rows) -> Columns:
        """Return what gives any slice of the mean: all vectors are tried now."""
        self._check(rows)
        return sums(rows, self._weigh(rows))

    def _combine(self, rows: Rows) -> torch.Tensor:
        return weighted_sum(rows, self._weigh(rows))

    def _weigh(self, rows: Rows) -> torch.Tensor:
        vector_d = new_vector(rows)
        scores = torch.tensor([self._scored(rows, row, vector_d) for row in range(rows.n)], dtype=torch.float64)
        best = scores.argsort(stable=True)[: rows.n - self.f]  # NaN comes last
        return mean_of(best, rows.n)

    def _scored(self, rows: Rows, row: int, vector_d: torch.Tensor) -> float:
        _read_row(rows, row, vector_d)
        return float(self.score(vector_d)) if bool(vector_d.isfinite().all()) else math.inf


def _read_row(rows: Rows, row: int, out_d: torch.Tensor) -> None:
    def work(part: slice) -> None:
        out_d[part] = rows.read(part)[row]

    def worker() -> Work:
        return work

    sweep(rows, parts(0, rows.d, width_for(rows, 0, out_d.device)), worker, out_d.device)
