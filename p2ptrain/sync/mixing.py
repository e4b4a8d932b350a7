"""From the vectors of a round to theta', the target of the outer step. Models are read by chunks, never stacked.

    tracked   theta' = theta + gamma Agg({0} and {w_j (x_j - x_i)})
    clipped   theta' = phi + s_i (x_i - phi) + Agg({0} and {w_j (s_j (x_j - phi) - s_i (x_i - phi))}),
              s_j = min(1, median_k ||x_k - phi|| / ||x_j - phi||)

x are the public estimates, own one x_i; w_j is the staleness weight, which shrinks the difference under any rule
(docs/decisions/0002). The aggregator sees own zero first, so that rules for gossip know which vector is their own.
`tracked` keeps what the own model has and has not sent yet. `clipped` goes to what was sent, which all members know
alike, and lets nobody pull harder than the median member (SparseLoCo, 2508.15706).

**What keeps the members' mean where it is.** Under the plain mean an edge moves its two ends by

    gamma_ij (x_j - x_i) / (1 + max(deg_i, deg_j)),   gamma_ij = min(gamma_i, gamma_j)

which is the same at both but for its sign: Metropolis weights (Xiao and Boyd, Systems & Control Letters 2004), doubly
stochastic on every graph, and one consensus step for an edge whatever the two codecs are. Both come as factors of at
most 1 on the difference, under any rule: the neighbour's degree against own (`metropolis_shares`), its gamma, too.
What a neighbour says of its degree is a claim, and so is the codec that it sends with. A large degree or a coarse codec
makes it weigh less. A small degree or a fine codec gains it nothing over one that is like ours.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple

import numpy as np
import torch

from p2ptrain.aggregate import Aggregator
from p2ptrain.aggregate.base import Columns, Rows, by_columns
from p2ptrain.aggregate.columns import WIDTH
from p2ptrain.compress.blocks import Floats
from p2ptrain.sync.fragments import Fragment
from p2ptrain.sync.loss_scorer import LossScorer
from p2ptrain.sync.vectors import Vector, values_of

CHUNK_NUMEL = 1 << 16
"""Coordinates stacked at a time: 256 KiB a member."""

SEGMENT_NUMEL = 8 * WIDTH
"""Coordinates for which theta' exists at a time: 1 MiB, a chunk for each thread. A multiple of an aggregator's chunks,
so that these are the same as of the whole vector, and their results the same bits."""


class OuterMomentum(NamedTuple):
    """What an outer optimizer keeps of earlier rounds' movements: a sum fp32 (p,), and what makes their mean of it."""

    sum_d: torch.Tensor
    share: float


@dataclass(frozen=True, kw_only=True)
class MixInputs:
    """The vectors of a round (d,), fp32, estimates perhaps bf16, and the part of the model that it averages. They are
    read a slice at a time, and what was read before may be changed meanwhile."""

    part: Fragment
    theta_d: torch.Tensor
    anchor_d: torch.Tensor
    public_d: torch.Tensor
    others: Sequence[Vector]
    """The chosen neighbours' estimates (d,)."""
    weights: Sequence[float]
    """Theirs, by staleness and degree."""
    gammas: Sequence[float]
    """The consensus steps that their codecs take."""
    gamma: float
    loss_scorer: LossScorer
    """Scores models for an aggregator that tries them; begins at theta."""
    refinements: Mapping[int, torch.Tensor] = field(default_factory=dict)
    """By the place of a neighbour in `others`: what is added to its difference to own estimate (d,), fp32, where both
    ends hold refinements (refinements.py)."""
    slice_of: int | None = None
    """How many parameters the model has of which the vectors are a slice; None: they are whole."""
    momentum: OuterMomentum | None = None
    """Of the part; None: nothing yet, or an outer optimizer that shows none."""

    def values(self, x_d: Vector, at: slice) -> Floats:
        """Return a slice of the part's values of one of the vectors, fp32: not to be changed."""
        return self.part.values(x_d, at)

    def read(self, x_d: Vector, at: slice) -> torch.Tensor:
        """Return a slice of the part's values of one of the vectors, fp32: not to be changed."""
        return self.part.read(x_d, at)


Blend = Callable[[MixInputs, Aggregator], Columns]
"""Gives slices of theta' (p,), each once, in order: new tensors."""


def metropolis_shares(own: int, degrees: Mapping[str, int]) -> dict[str, float]:
    """Return for each neighbour what makes 1 / (1 + own) the Metropolis weight 1 / (1 + max(own, theirs)), from how
    many neighbours we have and these have."""
    return {peer: (1 + own) / (1 + max(own, theirs)) for peer, theirs in degrees.items()}


def edge_weights(table: MixInputs) -> list[float]:
    """Return each neighbour's weight with its share of own consensus step."""
    shares = [min(1.0, gamma / table.gamma) for gamma in table.gammas]
    return [weight * share for weight, share in zip(table.weights, shares, strict=True)]


def tracked(table: MixInputs, rule: Aggregator) -> Columns:
    """Return theta' (p,) by slices: theta moved by the robust mean of the weighted differences to the public
    estimate."""
    weights = edge_weights(table)

    def read(at: slice) -> torch.Tensor:
        own_c = table.values(table.public_d, at)
        difference_nc = np.empty((len(table.others) + 1, own_c.size), dtype=np.float32)
        difference_nc[0] = 0
        rows = zip(difference_nc[1:], table.others, weights, strict=True)
        for place, (row_c, other_d, weight) in enumerate(rows):
            np.subtract(table.values(other_d, at), own_c, out=row_c)
            if place in table.refinements:
                row_c += table.values(table.refinements[place], at)
            if weight != 1:
                row_c *= np.float32(weight)
        return torch.from_numpy(difference_nc)

    move = by_columns(rule, Rows(len(table.others) + 1, table.part.numel, read, table.slice_of))
    return lambda at: move(at).mul_(table.gamma).add_(table.read(table.theta_d, at))


def clipped(table: MixInputs, rule: Aggregator) -> Columns:
    """Return theta' (p,) by slices: the anchor moved by public estimates, each clipped to the median distance."""
    whole = slice(0, table.part.numel)
    vectors: list[Vector] = [table.public_d, *table.others]
    norms = [_distance(table, x_d) for x_d in vectors]
    scales = [min(1.0, median(norms) / norm) if norm > 0 else 1.0 for norm in norms]

    def read(at: slice) -> torch.Tensor:
        anchor_c = table.read(table.anchor_d, at)
        own_c = torch.sub(table.read(table.public_d, at), anchor_c).mul_(scales[0])
        moved_nc = anchor_c.new_zeros(len(vectors), anchor_c.numel())
        for row_c, x_d, scale, weight in zip(moved_nc[1:], table.others, scales[1:], table.weights, strict=True):
            torch.sub(table.read(x_d, at), anchor_c, out=row_c).mul_(scale).sub_(own_c).mul_(weight)
        return moved_nc

    def own(at: slice) -> torch.Tensor:
        anchor_c = table.read(table.anchor_d, at)
        return torch.sub(table.read(table.public_d, at), anchor_c).mul_(scales[0]).add_(anchor_c)

    if table.loss_scorer.judge is not None:
        table.loss_scorer.start_from(own(whole))
    move = by_columns(rule, Rows(len(vectors), table.part.numel, read))
    return lambda at: own(at).add_(move(at))


def segments(numel: int) -> list[slice]:
    """0..numel in slices of SEGMENT_NUMEL, the last one perhaps shorter."""
    return [slice(start, min(start + SEGMENT_NUMEL, numel)) for start in range(0, numel, SEGMENT_NUMEL)]


def _distance(table: MixInputs, x_d: Vector) -> float:
    """||x - phi|| in the part, a chunk at a time."""
    squares = 0.0
    for at in parts(table.part.numel):
        squares += float(torch.linalg.vector_norm(table.read(x_d, at) - table.read(table.anchor_d, at))) ** 2
    return float(squares**0.5)


def spread(own_d: torch.Tensor, others: Sequence[Vector]) -> float:
    """Root mean square distance of own vector and the others to their mean: of differences to the own one,
    sum_i ||d_i||^2 - ||sum_i d_i||^2 / n.

    The own one's is 0, so that the second term is at most (n - 1) / n of the first: nothing cancels out."""
    squares, members = 0.0, len(others) + 1
    for part in parts(own_d.numel()):
        own_c = values_of(own_d, part)
        sum_c, difference_c = np.zeros_like(own_c), np.empty_like(own_c)
        for other_d in others:
            np.subtract(values_of(other_d, part), own_c, out=difference_c)
            squares += _square(difference_c)
            sum_c += difference_c
        squares -= _square(sum_c) / members
    return float((max(0.0, squares) / members) ** 0.5)


def _square(x_c: Floats) -> float:
    """<x, x>. By `einsum`, which starts no threads."""
    return float(np.einsum("c,c->", x_c, x_c))


def parts(numel: int) -> list[slice]:
    """0..numel in chunks."""
    return [slice(start, min(start + CHUNK_NUMEL, numel)) for start in range(0, numel, CHUNK_NUMEL)]
