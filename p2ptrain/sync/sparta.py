"""SPARTA: few parameters, drawn at random, are averaged in every round, and a fragment of the differences beside them.

    pack       of a P-th of each piece, others in every round, C(theta_i - phi + e_i), as in allreduce.py; and values
               fp16(theta_i) of a share of its parameters that all members draw alike from the round's number
    finish     the fragment moves by the outer step, and the model there becomes phi; at the places drawn the model goes
               by what came less what was told, elsewhere it stays

Source: Beton et al., "Improving the Efficiency of Distributed Training using Sparse Parameter Averaging" (EXO Labs, a
workshop paper of 2025): 0.05 to 0.5% of the parameters averaged at each step keep models in one basin, so that DiLoCo
beside it bears longer intervals. What is otherwise than there: a round is the unit, so take few inner steps (1 to 4);
places are drawn one from each of as many equal stretches, so that none is drawn twice; and the differences go by
fragments, as in streaming.py, in place of all at once every P rounds, so that rounds are alike in bytes and none is a
peak. Every parameter is in a fragment once in P rounds, which is the interval of DiLoCo.

**A lying contribution is bounded by the aggregator, a lying owner is not** in its fragment, as in allreduce.py. At the
places drawn it moves a value in a round by no more than twice the farthest that one of them is from the anchor, which
earlier lies count in.
Guarantee: with the mean, exact codecs, averaging, no missed part and members as far from the anchor as each other, the
members' mean stays where it is, to the rounding of fp16.
Cost: 2.03 / P + 16 random_share + 16 / refresh bits a parameter and copy: 0.37 with 8, 0.005 and 512. Memory as
allreduce, and at work a vector.
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Final, NamedTuple

import numpy as np
import torch

from p2ptrain import compress
from p2ptrain.compress.float16 import Fp16
from p2ptrain.compress.splitmix import draws
from p2ptrain.sync import allreduce
from p2ptrain.sync.allreduce import DifferenceAllReduce, ReducedPiece
from p2ptrain.sync.base import Reduced, RoundResult, SyncStrategy
from p2ptrain.sync.difference_packing import DifferencePacking, Section
from p2ptrain.sync.fragments import zeros_but_for_a_part
from p2ptrain.sync.strategy_spec import ALLREDUCE, StrategySpec
from p2ptrain.sync.sync_config import SyncConfig

FARTHEST: Final = 2.0
"""How far beyond own drift an averaged value may go: members begin at one anchor and drift much alike, so that their
mean is at most own drift and another's away. Chosen."""

SEED_BYTES: Final = 8


class Shares(NamedTuple):
    """What travels in a round."""

    period: int
    """Rounds from one turn of a fragment to its next."""
    share: float
    """Of the parameters, drawn at random."""
    refresh: int


class _Drawn(NamedTuple):
    """What came of the values of places drawn at random."""

    places: torch.Tensor
    shift: torch.Tensor
    """The mean of all members' values, less own, both as they travelled."""


def method(
    *,
    period: Annotated[int, "Rounds in which the differences of all parameters have travelled: a share in each."] = 8,
    random_share: Annotated[
        float, "Share of the parameters whose values are averaged in each round, in (0, 1]."
    ] = 0.005,
    refresh: Annotated[int, "Rounds in which all of the anchor has travelled as well: a share of it in each."] = 512,
) -> StrategySpec:
    """All-reduce of fragments of differences, and of values at random places."""
    if period < 1:
        raise ValueError(f"period must be at least 1, not {period}")
    if not 0 < random_share <= 1:
        raise ValueError(f"random_share must be in (0, 1], not {random_share}")
    if refresh < 1:
        raise ValueError(f"refresh must be at least 1, not {refresh}")
    return StrategySpec(
        name="sparta",
        models=partial(_build, Shares(period, random_share, refresh)),
        averager=ALLREDUCE,
        run_key=_run_key,
        compressor="q2",
        aggregator="mean",
        f=0,
        turn=period,
        check=allreduce.check,
        vectors=1,
    )


def _run_key(config: SyncConfig) -> str:
    """What allreduce's members have alike, and what travels in a round."""
    return " ".join(
        map(str, (allreduce.run_key(config), config.options.get("period"), config.options.get("random_share")))
    )


def _build(shares: Shares, config: SyncConfig, genesis_d: torch.Tensor, own: str) -> SyncStrategy:
    return SparseAllReduce(config, genesis_d, own, shares)


class SparseAllReduce(DifferenceAllReduce):
    """Averages fragments of differences to a common anchor, and values at places drawn at random."""

    def __init__(self, config: SyncConfig, genesis_d: torch.Tensor, own: str, shares: Shares) -> None:
        self._share = shares.share
        codec = compress.get(config.compressor, **config.codec_options())
        values = Section(Fp16(), self._count)
        packing = DifferencePacking(codec, genesis_d.numel(), shares.refresh, [values], period=shares.period)
        super().__init__(config, genesis_d, own, shares.refresh, packing)
        self._drawn: list[_Drawn] = []

    def places(self, piece: slice, round: int) -> torch.Tensor:
        """Return the parameters of a piece whose values travel in a round, rising: one of each of equal stretches."""
        width, count = piece.stop - piece.start, self._count(piece.stop - piece.start)
        seed = hashlib.blake2b(self._seed + round.to_bytes(SEED_BYTES, "little"), digest_size=SEED_BYTES).digest()
        drawn = draws(int.from_bytes(seed, "little"), piece.start, count) >> np.uint64(32)
        ends = np.arange(count + 1, dtype=np.uint64) * np.uint64(width) // np.uint64(count)
        within = drawn * np.diff(ends) >> np.uint64(32)
        return torch.from_numpy((ends[:-1] + within).astype(np.int64)).add_(piece.start)

    def finish_(
        self, theta_d: torch.Tensor, group: Sequence[str], parts: Sequence[Reduced], *, round: int
    ) -> RoundResult:
        """Close the round as DifferenceAllReduce does, for the fragment and the places drawn."""
        self._drawn = []
        return super().finish_(theta_d, group, parts, round=round)

    def _settled_(self, theta_d: torch.Tensor, came: Mapping[int, ReducedPiece], *, distance: float) -> RoundResult:
        """Correct the fragment to the anchor, and the places drawn by what came. `theta_d` becomes the corrected
        model, which is what is evaluated: all but one fragment of the anchor are of older rounds."""
        assert self._exchange is not None, "something came"
        correction_d = zeros_but_for_a_part(self._numel)
        for drawn in self._drawn:
            drift = float((theta_d[drawn.places] - self.anchor_d[drawn.places]).abs().max())
            correction_d[drawn.places] = drawn.shift.clamp(-FARTHEST * drift, FARTHEST * drift)
        for index in came:
            at = self.packing.moved(self.packing.spans[index], self._exchange.round)
            correction_d[at] = self.anchor_d[at] - theta_d[at]
        theta_d += correction_d
        members = min((piece.counted.bit_count() for piece in came.values()), default=1)
        return self._closed(correction_d, theta_d, distance=distance, members=members)

    def _piece(self, theta_d: torch.Tensor, at: slice, round: int) -> torch.Tensor:
        return torch.cat([super()._piece(theta_d, at, round), theta_d[self.places(at, round)]])

    def _take_beside(self, at: slice, round: int, told_p: torch.Tensor, piece_p: torch.Tensor) -> None:
        """Keep what came of the values. What comes after its round is not taken: steps have gone on from own ones."""
        values_p, told_values_p = self.packing.sections(piece_p)[2], self.packing.sections(told_p)[2]
        self._drawn.append(_Drawn(self.places(at, round), values_p - told_values_p))

    def _count(self, width: int) -> int:
        return max(1, min(width, math.ceil(self._share * width)))
