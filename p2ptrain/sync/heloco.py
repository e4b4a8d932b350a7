"""HeLoCo: what a neighbour learned is turned towards the outer momentum where it conflicts with it (2606.00271).

    Delta_j = xhat_j - phi;  per block b of values in a row, with m the mean movement that outer momentum holds:
    u = Delta_b / ||Delta_b||, v = m_b / ||m_b||, c = <u, v>, conf = ||Delta_b|| / (||Delta_b|| + kappa ||m_b|| + eps)
      c >= keep       Delta_b as it is
      c < 0           Delta_b - beta c ||Delta_b|| v,  beta = min(shrink (-c) conf, most_shrink)
      0 <= c < keep   as long as Delta_b, along (1 - lambda) u + lambda v,  lambda = min(turn (1 - c) conf, 1)
    theta' = theta + gamma Agg over {0} and {w_j (phi + corrected Delta_j - xhat)};  phi <- Nesterov(phi, theta')

An update that began at an older model points back from where the others have gone meanwhile: that is what conflicts.

What differs from the paper: there a server corrects each arrival and takes a step at once. Here each receiver corrects
every neighbour's estimate, by its own momentum, before its aggregator; its own movement stays as it is. Blocks are
values in a row, as strategies know no tensors. lambda is by another author's statement of the paper's formula
(junaidaliop.github.io/zij). **The paper's values of the five options were not found; these defaults are ours.**
An outer step that shows no momentum (`average`, `noloco`) has nothing corrected.
Guarantee: the aggregator's; plain mean by default. A correction makes no Delta_b longer, so a liar gains no length. It
may be turned to where momentum points: lies that have once entered momentum turn honest neighbours towards them.
Cost: as tracked_gossip with int4 payloads, one vector, and one more pass over the estimates.
"""

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Final

import numpy as np
import numpy.typing as npt
import torch

from p2ptrain.aggregate import Aggregator
from p2ptrain.aggregate.base import Columns, Rows, by_columns
from p2ptrain.sync.base import SyncStrategy
from p2ptrain.sync.checks import check_momentum
from p2ptrain.sync.encoder import FragmentSchedule, TrackedEncoder
from p2ptrain.sync.mixing import MixInputs, OuterMomentum, edge_weights
from p2ptrain.sync.model_averaging import AveragingParts, ModelAveraging
from p2ptrain.sync.strategy_spec import StrategySpec
from p2ptrain.sync.sync_config import SyncConfig

EPSILON: Final = 1e-12
LEAST_MOMENTUM: Final = 1e-30
"""A block's momentum below this length has no direction: what stood still for a hundred rounds keeps a rest of it, of
which fp32 does not hold the inverse."""
BLOCKS_AT_A_TIME: Final = 16
"""Blocks that are measured at a time: 256 KiB of a vector."""

Weights = npt.NDArray[np.float64]


def method(
    *,
    keep: Annotated[float, "Cosine to the outer momentum from which a block stays as it is, in [0, 1]."] = 0.2,
    shrink: Annotated[float, "How strongly what opposes the momentum is taken back, at least 0."] = 1.0,
    most_shrink: Annotated[float, "The most of it that is taken back, in [0, 1]."] = 1.0,
    turn: Annotated[float, "How strongly a block is turned towards the momentum, at least 0."] = 0.5,
    kappa: Annotated[float, "The momentum's length beside the block's in how sure a correction is, at least 0."] = 1.0,
    block: Annotated[int, "Values in a row that are corrected as one."] = 4096,
) -> StrategySpec:
    """Corrected by direction, Nesterov."""
    correction = DirectionCorrection(keep, shrink, most_shrink, turn, kappa, block)
    return StrategySpec(
        name="heloco",
        models=partial(_build, correction),
        compressor="int4",
        aggregator="mean",
        f=0,
        outer="nesterov",
        ends_at_anchor=True,
        check=check_momentum,
    )


def _build(correction: "DirectionCorrection", config: SyncConfig, genesis_d: torch.Tensor, own: str) -> SyncStrategy:
    schedule = FragmentSchedule.of(genesis_d.numel(), config.compressor, config.codec_options())
    encoder = TrackedEncoder(schedule, genesis_d, config.estimate_dtype)
    return ModelAveraging(config, genesis_d, AveragingParts(encoder=encoder, blend=correction))


@dataclass(frozen=True)
class DirectionCorrection:
    """A blend that corrects neighbours' movements by direction. ValueError on options that cannot be."""

    keep: float
    shrink: float
    most_shrink: float
    turn: float
    kappa: float
    block: int

    def __post_init__(self) -> None:
        if not (0 <= self.keep <= 1 and 0 <= self.most_shrink <= 1):
            raise ValueError(f"keep and most_shrink must be in [0, 1], not {self.keep} and {self.most_shrink}")
        if not all(0 <= value < float("inf") for value in (self.shrink, self.turn, self.kappa)):
            raise ValueError(f"shrink, turn and kappa must be at least 0, not {self.shrink}, {self.turn}, {self.kappa}")
        if self.block < 1:
            raise ValueError(f"block must be 1 or more, not {self.block}")

    def __call__(self, table: MixInputs, rule: Aggregator) -> Columns:
        """Return theta' (p,) by slices: theta moved by the robust mean of the corrected differences to own estimate."""
        weights = edge_weights(table)
        momentum = table.momentum
        changes = None if momentum is None else self._changes(table, momentum)

        def read(at: slice) -> torch.Tensor:
            own_c = table.values(table.public_d, at)
            difference_nc = np.zeros((len(table.others) + 1, own_c.size), dtype=np.float32)
            for place, (row_c, other_d, weight) in enumerate(
                zip(difference_nc[1:], table.others, weights, strict=True)
            ):
                other_c = table.values(other_d, at)
                np.subtract(other_c, own_c, out=row_c)
                if changes is not None and momentum is not None:
                    block_c = np.arange(at.start, at.stop) // self.block
                    scale_c, push_c = (part_nb[place][block_c].astype(np.float32) for part_nb in changes[:2])
                    row_c += scale_c * (other_c - table.values(table.anchor_d, at))
                    row_c += push_c * (momentum.sum_d[at].numpy() * changes[2][block_c].astype(np.float32))
                if weight != 1:
                    row_c *= np.float32(weight)
            return torch.from_numpy(difference_nc)

        move = by_columns(rule, Rows(len(table.others) + 1, table.part.numel, read, table.slice_of))
        return lambda at: move(at).mul_(table.gamma).add_(table.read(table.theta_d, at))

    def _changes(self, table: MixInputs, momentum: OuterMomentum) -> tuple[Weights, Weights, Weights]:
        """How much of its Delta, and how far along the momentum, is added to each neighbour's difference, float64
        (n, blocks); and what makes unit vectors of the momentum, (blocks,)."""
        blocks = -(-table.part.numel // self.block)
        inner_nb, delta_nb = np.zeros((2, len(table.others), blocks))
        momentum_b = np.zeros(blocks)
        for first in range(0, blocks, BLOCKS_AT_A_TIME):
            last = min(first + BLOCKS_AT_A_TIME, blocks)
            at = slice(first * self.block, min(last * self.block, table.part.numel))
            begins = np.arange(0, at.stop - at.start, self.block)
            momentum_c = momentum.sum_d[at].numpy().astype(np.float64)
            anchor_c = table.values(table.anchor_d, at)
            momentum_b[first:last] = np.add.reduceat(momentum_c * momentum_c, begins)
            for place, other_d in enumerate(table.others):
                delta_c = (table.values(other_d, at) - anchor_c).astype(np.float64)
                inner_nb[place, first:last] = np.add.reduceat(delta_c * momentum_c, begins)
                delta_nb[place, first:last] = np.add.reduceat(delta_c * delta_c, begins)
        length_b = np.sqrt(momentum_b)
        inverse_b = np.divide(1, length_b, out=np.zeros(blocks), where=length_b >= LEAST_MOMENTUM)
        return *self.changes(inner_nb, np.sqrt(delta_nb), length_b, momentum.share), inverse_b

    def changes(
        self, inner_nb: Weights, delta_nb: Weights, momentum_b: Weights, share: float
    ) -> tuple[Weights, Weights]:
        """Return, for <Delta, m>, ||Delta|| and ||m|| of each block, m the momentum of which `share` is the mean
        movement, what of Delta is added to it, and how far it is moved along m: (n, blocks) each, 0 where it stays."""
        with np.errstate(all="ignore"):
            cosine_nb = inner_nb / (delta_nb * momentum_b)
            sure_nb = delta_nb / (delta_nb + self.kappa * share * momentum_b + EPSILON)
            opposes, weak = cosine_nb < 0, (cosine_nb >= 0) & (cosine_nb < self.keep)  # neither: NaN of a block of 0
            back_nb = np.minimum(self.shrink * -cosine_nb * sure_nb, self.most_shrink) * -cosine_nb * delta_nb
            turn_nb = np.minimum(self.turn * (1 - cosine_nb) * sure_nb, 1)
            squares_nb = (1 - turn_nb) ** 2 + turn_nb**2 + 2 * turn_nb * (1 - turn_nb) * cosine_nb
            length_nb = np.maximum(np.sqrt(np.maximum(squares_nb, 0)), EPSILON)
            scale_nb = np.where(weak, (1 - turn_nb) / length_nb - 1, 0.0)
            push_nb = np.where(opposes, back_nb, np.where(weak, turn_nb / length_nb * delta_nb, 0.0))
        known = np.isfinite(scale_nb) & np.isfinite(push_nb) & (momentum_b >= LEAST_MOMENTUM)
        return np.where(known, scale_nb, 0.0), np.where(known, push_nb, 0.0)
