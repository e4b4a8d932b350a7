"""DES-LOC: models and the inner optimizer's moments are averaged, each at a pace of its own.

    pack       as in allreduce.py, and beside it a share of own moments: 1 / first_period of the first ones (momenta),
               1 / second_period of the second ones (mean squares), others in every round
    reduce     the owner of a part aggregates moments as it does differences
    finish     as in allreduce.py, and own moments of the share become what came, within bounds

Source: Iacob et al., DES-LOC (2505.22549): parameters every K_x steps, first moments every K_u = 3 K_x, second ones
every K_v = 6 K_x, as their half-lives allow. Local Adam averages all three at K_x. What is otherwise than in the paper:
the differences go to an outer step and travel with error feedback; moments do not travel whole in every third and sixth
round but by shares, so that all rounds have as many bytes; and in four bits, the second ones as powers of two
(moment_packing.py). Their mean is that of the values. They have no error feedback, as they are forgotten anyway.

What averaged moments are for: an optimizer's state that only its member's data have made leads members apart in the
next round again, and a newcomer begins with none. Here a newcomer's are the others' after `second_period` rounds.
Which buffers are moments the inner optimizer says (inner/base.py): AdamW's, Muon's and SGD's.

**A lying contribution is bounded by the aggregator.** What the owner of a part says of moments is bounded, unlike what
it says of differences: no first moment gets beyond sqrt(k) times what the optimizer's betas can make of the root of its
second one, of k members, nor any second one below what that asks of it, so that no step of AdamW's is longer than so
many steady ones; no second moment gets in a round above four times the largest own one of the share, which a lie of the
last round counts in; a momentum that nothing divides gets at most twice as long as own one. Within that, it says where
moments point until they fade.
Guarantee: allreduce's; and with an exact codec, the mean, nothing late and members much alike, moments of the share
are the members' mean, in bf16.
Cost beside allreduce: 4.13 (1 / first_period + 1 / second_period) bits a parameter and copy for AdamW, 2.06 with 3 and
6; a copy of the moments in each round.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, NamedTuple

import torch

from p2ptrain import compress
from p2ptrain.inner.base import MomentBuffer
from p2ptrain.inner.inner_state import BufferPart, InnerState
from p2ptrain.sync import allreduce
from p2ptrain.sync.allreduce import DifferenceAllReduce
from p2ptrain.sync.base import Reduced, RoundResult, SyncStrategy
from p2ptrain.sync.difference_packing import DifferencePacking
from p2ptrain.sync.moment_packing import MomentPacking
from p2ptrain.sync.strategy_spec import ALLREDUCE, StrategySpec
from p2ptrain.sync.sync_config import SyncConfig


class Paces(NamedTuple):
    """Rounds in which all of something has travelled."""

    anchor: int
    first: int
    second: int


def method(
    *,
    refresh: Annotated[int, "Rounds in which all of the anchor has travelled as well: a share of it in each."] = 64,
    first_period: Annotated[int, "Rounds in which all first moments are averaged once: a share of them in each."] = 3,
    second_period: Annotated[int, "Rounds in which all second moments are averaged once: a share of them in each."] = 6,
) -> StrategySpec:
    """All-reduce of differences, and of the inner optimizer's moments at rarer paces."""
    paces = Paces(refresh, first_period, second_period)
    for name, rounds in zip(("refresh", "first_period", "second_period"), paces, strict=True):
        if rounds < 1:
            raise ValueError(f"{name} must be at least 1, not {rounds}")
    return StrategySpec(
        name="des_loc",
        models=partial(_build, paces),
        averager=ALLREDUCE,
        run_key=_run_key,
        compressor="q2",
        aggregator="mean",
        f=0,
        check=allreduce.check,
        vectors=1,
        wants=frozenset({"moments"}),
    )


def _run_key(config: SyncConfig) -> str:
    """What allreduce's members have alike, and the paces."""
    paces = (config.options.get("first_period"), config.options.get("second_period"))
    return " ".join(map(str, (allreduce.run_key(config), *paces)))


def _build(paces: Paces, config: SyncConfig, genesis_d: torch.Tensor, own: str) -> SyncStrategy:
    return MomentAllReduce(config, genesis_d, own, paces)


class MomentAllReduce(DifferenceAllReduce):
    """Averages differences to a common anchor, and moments. `average_moments` comes before the first round: without it
    differences alone travel. Memory beside DifferenceAllReduce: from `take_inner_state` to `finish` own moments."""

    def __init__(self, config: SyncConfig, genesis_d: torch.Tensor, own: str, paces: Paces) -> None:
        super().__init__(config, genesis_d, own, paces.anchor)
        self._paces = paces
        self._moments: MomentPacking | None = None
        self._own_moments: dict[str, torch.Tensor] = {}
        """As the round's steps left them, and then as they become."""
        self._averaged: list[BufferPart] = []
        """What of them has become another."""

    def average_moments(self, buffers: Sequence[MomentBuffer]) -> None:
        """Average these buffers from now on."""
        codec, (anchor, *periods) = compress.get(self.config.compressor, **self.config.codec_options()), self._paces
        fine = codec.contraction == 1.0
        self._moments = MomentPacking(buffers, self._numel, periods=(periods[0], periods[1]), fine=fine)
        self.packing = DifferencePacking(codec, self._numel, anchor, self._moments.sections)

    def take_inner_state(self, state: InnerState) -> None:
        """Take own moments as the round's steps left them: they are given away. ValueError when not finite."""
        assert self._moments is not None, "average_moments comes first"
        self._moments.check(state.moments)
        self._own_moments = dict(state.moments)

    def finish_(
        self, theta_d: torch.Tensor, group: Sequence[str], parts: Sequence[Reduced], *, round: int
    ) -> RoundResult:
        """Close the round as DifferenceAllReduce does; moments become what came of them."""
        self._averaged = []
        closed = super().finish_(theta_d, group, parts, round=round)
        averaged, self._averaged, self._own_moments = self._averaged, [], {}
        return replace(closed, optimizer_state=averaged)

    def _piece(self, theta_d: torch.Tensor, at: slice, round: int) -> torch.Tensor:
        piece_p = super()._piece(theta_d, at, round)
        if self._moments is None:
            return piece_p
        assert self._own_moments, "take_inner_state comes before pack"
        return torch.cat([piece_p, self._moments.read(self._own_moments, at, round)])

    def _take_beside(self, at: slice, round: int, told_p: torch.Tensor, piece_p: torch.Tensor) -> None:
        """Take the moments of a piece. What comes after its round is not taken: own ones have moved on, and their turn
        comes again."""
        if self._moments is None or self._exchange is None or not self._own_moments:
            return
        _, _, *means = self.packing.sections(piece_p)
        self._averaged += self._moments.take_(self._own_moments, means, at, round, members=self._exchange.members)
