"""From the vectors of a round to theta', the target of the outer step. Models are read by chunks, never stacked.

    tracked   theta' = theta + gamma Agg({0} and {w_j (x_j - x_i)})
    clipped   theta' = phi + s_i (x_i - phi) + Agg({0} and {w_j (s_j (x_j - phi) - s_i (x_i - phi))}),
              s_j = min(1, median_k ||x_k - phi|| / ||x_j - phi||)

x are the public estimates, own one x_i; w_j is the staleness weight, which shrinks the difference under any rule
(docs/decisions/0002). The aggregator sees own zero first, so that rules for gossip know which vector is their own.
`tracked` keeps what the own model has and has not sent yet. `clipped` goes to what was sent, which all members know
alike, and lets nobody pull harder than the median member (SparseLoCo, 2508.15706).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import torch

from p2ptrain.aggregate import Aggregator
from p2ptrain.aggregate.base import Rows
from p2ptrain.sync.loss_scorer import LossScorer

CHUNK_NUMEL = 1 << 16
"""Coordinates stacked at a time: 256 KiB a member."""


@dataclass(frozen=True, kw_only=True)
class MixInputs:
    """The vectors of a round, or of the part of the model that it averages: fp32, estimates perhaps bf16. None of them
    may be changed, but for `out_p`."""

    theta_p: torch.Tensor
    anchor_p: torch.Tensor
    public_p: torch.Tensor
    others: Sequence[torch.Tensor]
    """The chosen neighbours' estimates (p,)."""
    weights: Sequence[float]
    """Theirs, by staleness."""
    gamma: float
    loss_scorer: LossScorer
    """Scores models for an aggregator that tries them; begins at theta."""
    out_p: torch.Tensor | None = None
    """Where the result may be written, though it is the anchor's own vector."""


Blend = Callable[[MixInputs, Aggregator], torch.Tensor]
"""theta' (p,), a new tensor or `out_p`."""


def tracked(table: MixInputs, rule: Aggregator) -> torch.Tensor:
    """Return theta' (p,): theta moved by the robust mean of the weighted differences to the public estimate."""

    def read(part: slice) -> torch.Tensor:
        own_c = table.public_p[part].float()
        difference_nc = own_c.new_zeros(len(table.others) + 1, own_c.numel())
        for row_c, other_p, weight in zip(difference_nc[1:], table.others, table.weights, strict=True):
            torch.sub(other_p[part].float(), own_c, out=row_c).mul_(weight)
        return difference_nc

    move_p = rule.reduce(Rows(len(table.others) + 1, table.public_p.numel(), read, table.out_p))
    return move_p.mul_(table.gamma).add_(table.theta_p)


def clipped(table: MixInputs, rule: Aggregator) -> torch.Tensor:
    """Return theta' (p,): the anchor moved by public estimates, each clipped to the median distance."""
    vectors = [table.public_p, *table.others]
    norms = [distance(x_p, table.anchor_p) for x_p in vectors]
    scales = [min(1.0, median(norms) / norm) if norm > 0 else 1.0 for norm in norms]

    def read(part: slice) -> torch.Tensor:
        anchor_c = table.anchor_p[part]
        own_c = torch.sub(table.public_p[part].float(), anchor_c).mul_(scales[0])
        moved_nc = anchor_c.new_zeros(len(vectors), anchor_c.numel())
        for row_c, x_p, scale, weight in zip(moved_nc[1:], table.others, scales[1:], table.weights, strict=True):
            torch.sub(x_p[part].float(), anchor_c, out=row_c).mul_(scale).sub_(own_c).mul_(weight)
        return moved_nc

    own_p = torch.sub(table.public_p.float(), table.anchor_p).mul_(scales[0]).add_(table.anchor_p)
    table.loss_scorer.start_from(own_p)
    return own_p + rule.reduce(Rows(len(vectors), table.public_p.numel(), read))


def distance(x_d: torch.Tensor, y_d: torch.Tensor) -> float:
    """||x - y||, a chunk at a time."""
    squares = 0.0
    for part in parts(x_d.numel()):
        squares += float(torch.linalg.vector_norm(x_d[part].float() - y_d[part].float())) ** 2
    return float(squares**0.5)


def spread(own_d: torch.Tensor, others: Sequence[torch.Tensor]) -> float:
    """Root mean square distance of own vector and the others to their mean."""
    squares = 0.0
    for part in parts(own_d.numel()):
        own_c = own_d[part].float()
        x_nc = torch.stack([own_c, *(other_d[part].float() for other_d in others)]).sub_(own_c)
        squares += float(torch.linalg.vector_norm(x_nc - x_nc.mean(dim=0))) ** 2
    return float((squares / (len(others) + 1)) ** 0.5)


def parts(numel: int) -> list[slice]:
    """0..numel in chunks."""
    return [slice(start, min(start + CHUNK_NUMEL, numel)) for start in range(0, numel, CHUNK_NUMEL)]
