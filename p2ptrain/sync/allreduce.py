"""All-reduce of differences: every member begins a round at the same anchor, and what it learned travels in two bits.

    pack       C(theta_i - phi + e_i), of which every part can be read alone (difference_packing.py)
    reduce     of each part its owner makes q = C(Agg over the group of decode C(...)), which all others take
    finish     phi <- OuterStep(phi, phi + q); e_i <- theta_i - phi + e_i - decode C(...); the model becomes phi

The steps between two exchanges and the outer optimizer are DiLoCo's (2311.08105), the error feedback e is that of 1-bit
SGD (1901.09847). DoubleSqueeze (1905.05957) has a second one, at the owner. With two bits it gains nothing (measured:
1.6434 with, 1.6411 without), and without it every owner makes the same bytes of a part.

What a member sends is 2 (k-1)/k of a packed vector, however many members there are: of 8, 1.75 where in a full mesh of
tracked updates it is 7.

A member whose difference came too late for an owner sees that it was not counted, and tells it again. One that missed
a part keeps its anchor and what it learned there. It takes the part before the next round if it still comes, and tells
what it learned in that round if not. Its anchor, or a newcomer's, is then no longer that of the others. What it tells
is right all the same, a difference. And in every round a share of the anchors travels as well, so that after `refresh`
rounds all are alike again, however they came apart. (Of more than LARGEST_GROUP members each group has an anchor of its
own in every round, and that share alone holds them together.)

**A lying contribution is bounded by the aggregator, a lying owner is not**, as in group_allreduce.py: it moves the part
that it owns in this round, for all. Here nothing pulls back from that but further training.
Guarantee: with the mean, an exact codec, averaging and no missed part, the members' mean, the same bits at all.
Cost: the anchor and e; 2.03 + 16 / refresh bits a parameter and copy.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Final, NamedTuple

import torch

from p2ptrain import compress
from p2ptrain.outer import BySlices
from p2ptrain.sync.base import Reduced, RoundResult, SyncStrategy
from p2ptrain.sync.checks import check_differences, check_no_gamma
from p2ptrain.sync.difference_packing import DifferencePacking, counting
from p2ptrain.sync.fragments import Fragment
from p2ptrain.sync.group_allreduce import LARGEST_GROUP, GroupAllReduce
from p2ptrain.sync.packing import Packing
from p2ptrain.sync.peer_selection import EVERYONE
from p2ptrain.sync.strategy_spec import ALLREDUCE, StrategySpec
from p2ptrain.sync.sync_config import SyncConfig
from p2ptrain.sync.vectors import check_model

OUTERS: Final = ("average", "nesterov", "noloco")
"""Those that remember nothing but a vector, each parameter by itself: members whose anchors are alike, and their
momenta, stay so whichever parts come, and momenta that are not come to be."""

_RESIDUAL: Final = "residual"


def method(
    *, refresh: Annotated[int, "Rounds in which all of the anchor has travelled as well: a share of it in each."] = 64
) -> StrategySpec:
    """All-reduce of differences to a common anchor, with error feedback."""
    if refresh < 1:
        raise ValueError(f"refresh must be at least 1, not {refresh}")
    return StrategySpec(
        name="allreduce",
        models=partial(_build, refresh),
        averager=ALLREDUCE,
        run_key=run_key,
        compressor="q2",
        aggregator="mean",
        f=0,
        ends_at_anchor=True,
        check=check,
        vectors=1,
    )


def check(config: SyncConfig) -> None:
    """ValueError on what differences to a common anchor cannot be reduced by."""
    check_no_gamma(config)
    check_differences(config)
    if config.outer not in OUTERS:
        raise ValueError(
            f"{config.strategy} moves parts of the anchor as they come, and {config.outer} counts its rounds: "
            f"use one of {', '.join(OUTERS)}"
        )


def run_key(config: SyncConfig) -> str:
    """Members who pack otherwise could give each other nothing; those with another outer step have other anchors."""
    chosen = (*packing_key(config), config.outer, *sorted(config.outer_options().items()))
    return " ".join(map(str, (config.strategy, *chosen)))


def packing_key(config: SyncConfig) -> tuple[object, ...]:
    """Return what members pack alike by. What another matrix has rotated counts as absent, so options are in it."""
    return (config.options.get("refresh"), config.compressor, *sorted(config.codec_options().items()))


def _build(refresh: int, config: SyncConfig, genesis_d: torch.Tensor, own: str) -> SyncStrategy:
    return DifferenceAllReduce(config, genesis_d, own, refresh)


@dataclass(frozen=True)
class Exchange:
    """Own side of the last exchange."""

    packed: bytes
    round: int
    place: int
    """Own one in the group."""
    members: int
    taken: set[int] = field(default_factory=set)
    """The pieces by which the anchor has moved."""

    @property
    def everybody(self) -> int:
        """A bit for each member."""
        return (1 << self.members) - 1


class ReducedPiece(NamedTuple):
    """A reduced piece."""

    part: bytes
    place: int
    """In the part."""
    counted: int
    """A bit for each member that it counts."""


class DifferenceAllReduce(GroupAllReduce):
    """Averages all members' differences to a common anchor, by parts. Memory: the anchor, which is the public model
    too, the residual, what the outer optimizer remembers, and the packed differences; from `pack` to `finish` also the
    others' packed parts with what was made of them."""

    def __init__(
        self,
        config: SyncConfig,
        genesis_d: torch.Tensor,
        own: str,
        refresh: int,
        packing: DifferencePacking | None = None,
    ) -> None:
        """`packing`: where more travels than differences and the anchor, or fewer of them."""
        super().__init__(config, genesis_d, own, EVERYONE)
        codec = compress.get(config.compressor, **config.codec_options())
        self.packing: DifferencePacking = packing or DifferencePacking(codec, genesis_d.numel(), refresh)
        self.residual_d = torch.zeros_like(genesis_d)
        """e: what was to be sent and was not."""
        self._exchange: Exchange | None = None

    @property
    def _reducing(self) -> Packing:
        return self.packing.reducing

    def peer_selection(self, peers: Collection[str], *, round: int) -> list[str]:
        """Return all members of the run, own name included, in the order of their parts. Where the network has no
        exchange as large, they are cut into equal groups, others in every round."""
        members = super().peer_selection(peers, round=round)
        groups = -(-len(members) // LARGEST_GROUP)
        group = (members.index(self._own) * groups + groups - 1) // len(members) if groups > 1 else 0
        return members[group * len(members) // groups : (group + 1) * len(members) // groups]

    def packed(self, theta_d: torch.Tensor, *, round: int) -> bytes:
        """Return what travels of a model, which may be a lie; nothing changes."""
        return b"".join(self.packing.pack(self._piece(theta_d, at, round)) for at in self.packing.spans)

    def pack(self, theta_d: torch.Tensor, *, round: int) -> bytes:
        """Return how far the model moved as bytes; it is not to be changed until `finish`. ValueError when not
        finite."""
        self._check_shape(theta_d)
        check_model(theta_d)
        self._exchange = None
        self._packed = self.packed(theta_d, round=round)
        return self._packed

    def reduce(self, packed: Mapping[str, bytes | memoryview], *, group: Sequence[str], part: slice) -> bytes:
        """Reduce one part of several members' differences to as many bytes, a piece at a time. Every owner makes the
        same bytes of them. Where too few are left for f, or nobody but oneself, nobody is counted: an anchor that
        moves by one's own difference alone would be no one else's."""
        there = self._readable(packed)
        rule, _ = self._fault_tolerance.rule(len(there))
        if rule is None or len(there) == 1:
            return bytes(part.stop - part.start)
        members = sum(1 << group.index(name) for name in there)
        pieces = self._reduced(rule, list(there.values()))
        return b"".join(counting(self._reducing.pack(piece_p), members) for piece_p in pieces)

    def finish_(
        self, theta_d: torch.Tensor, group: Sequence[str], parts: Sequence[Reduced], *, round: int
    ) -> RoundResult:
        """Close the round in place, a piece at a time: `theta_d` becomes the correction, and the anchor the new one. A
        piece that did not come, or counts nobody, changes nothing."""
        self._check_shape(theta_d)
        if self._is_public:
            self._lent = False  # to the encoder alone, which is given the new one
        self._own_anchor()
        packed, self._packed, self._exchange = self._packed, b"", None
        if len(group) == 1:
            moved = self._move_(theta_d, lambda at: theta_d[at], Fragment(theta_d.numel()))
            return self._closed(moved.correction_d, self.anchor_d, distance=0.0, members=1)
        self._exchange = Exchange(packed, round, group.index(self._own), len(group))
        came, spans = self._came(self._exchange, parts), self.packing.spans
        for index in came:
            at = self.packing.moved(spans[index], round)
            self.residual_d[at] += theta_d[at] - self.anchor_d[at]
        return self._settled_(theta_d, came, distance=self._advance(self._exchange, came))

    def _settled_(self, theta_d: torch.Tensor, came: Mapping[int, "ReducedPiece"], *, distance: float) -> RoundResult:
        """Correct the model to the anchor where pieces came; elsewhere it stays. `theta_d` becomes the correction."""
        spans = self.packing.spans
        snapshot_d = self.anchor_d if len(came) == len(spans) else self.anchor_d.clone()
        for index, at in enumerate(spans):
            if index in came:
                torch.sub(self.anchor_d[at], theta_d[at], out=theta_d[at])
            else:
                snapshot_d[at] = theta_d[at]
                theta_d[at].zero_()
        members = min((piece.counted.bit_count() for piece in came.values()), default=1)
        return self._closed(theta_d, snapshot_d, distance=distance, members=members)

    def take_missed(self, parts: Sequence[Reduced]) -> None:
        """Take parts of the last round that came after `finish`. The model stays where it is until the next one: what
        it learned is told from there."""
        if self._exchange is None:
            return
        before_d, self.anchor_d = self.anchor_d, self.anchor_d.clone()
        self._advance(self._exchange, self._came(self._exchange, parts))
        self.residual_d += self.anchor_d - before_d
        self.encoder.restart(self.anchor_d)
        self._lent = self._is_public = True

    def _came(self, exchange: "Exchange", parts: Sequence[Reduced]) -> dict[int, "ReducedPiece"]:
        """The pieces that are here, can be read, and count somebody of the group."""
        found = self._pieces_of(self._that_came(parts)).items()
        counted = self.packing.counted
        pieces = {index: ReducedPiece(*piece, counted(*piece) & exchange.everybody) for index, piece in found}
        came = {index: piece for index, piece in pieces.items() if piece.counted and index not in exchange.taken}
        exchange.taken.update(came)
        return came

    def _advance(self, exchange: "Exchange", came: Mapping[int, "ReducedPiece"]) -> float:
        """Move the anchor by the pieces that came, and take from the residual what of it they count. Return how far own
        differences were from their mean."""
        pack = self.packing
        squares = 0.0

        optimizer = self._outers[0]
        assert isinstance(optimizer, BySlices), "OUTERS are"
        move = optimizer.begin_step(self._numel)
        for index, piece in came.items():
            at, told_p, mean_p, shift_p = self._heard_of(exchange, index, piece)
            squares += float(torch.linalg.vector_norm(mean_p - told_p)) ** 2
            move(at, self.anchor_d[at], self.anchor_d[at] + mean_p)
            self.anchor_d[pack.refreshed(pack.spans[index], exchange.round)] += shift_p
        return math.sqrt(squares)

    def _heard_of(
        self, exchange: Exchange, index: int, piece: ReducedPiece
    ) -> tuple[slice, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return which parameters a reduced piece says moved, what was sent for them, what came of that, and by how
        much the share of the anchor that travelled is off the others'. The residual loses what the piece counts of
        it."""
        pack = self.packing
        own_p, piece_p = pack.piece(exchange.packed, index), pack.piece(piece.part, piece.place)
        (told_p, told_anchor_p), (mean_p, mean_anchor_p) = pack.split(own_p), pack.split(piece_p)
        self._take_beside(pack.spans[index], exchange.round, own_p, piece_p)
        at = pack.moved(pack.spans[index], exchange.round)
        if piece.counted >> exchange.place & 1:
            self.residual_d[at] -= told_p
        return at, told_p, mean_p, mean_anchor_p - told_anchor_p

    def _take_beside(self, at: slice, round: int, told_p: torch.Tensor, piece_p: torch.Tensor) -> None:
        """Take what of a reduced piece is neither difference nor anchor: here nothing. `told_p`: own piece."""

    def _closed(
        self, correction_d: torch.Tensor, snapshot_d: torch.Tensor, *, distance: float, members: int
    ) -> RoundResult:
        self.encoder.restart(self.anchor_d)
        self._lent = self._is_public = True
        return RoundResult(
            correction_d=correction_d,
            anchor_d=self.anchor_d,
            snapshot_d=snapshot_d,
            consensus_distance=distance,
            members=members,
            robust=self._fault_tolerance.rule(members)[1],
        )

    def finish(
        self, theta_d: torch.Tensor, group: Sequence[str], parts: Sequence[Reduced], *, round: int
    ) -> RoundResult:
        """Close the round with the reduced parts; the old anchor and `theta_d` stay as they are."""
        self._is_public = False
        return super().finish(theta_d, group, parts, round=round)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return the own state, with the `residual`."""
        return super().state_dict() | {_RESIDUAL: self.residual_d}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        """Take up `state_dict`. ValueError when it is of another model."""
        residual_d = state.get(_RESIDUAL, torch.zeros_like(self.residual_d))
        if residual_d.shape != self.residual_d.shape or residual_d.dtype != torch.float32:
            raise ValueError("the sync state belongs to another model: its vectors have other sizes")
        super().load_state_dict({name: value for name, value in state.items() if name != _RESIDUAL})
        self.residual_d = residual_d.clone()

    def _piece(self, theta_d: torch.Tensor, at: slice, round: int) -> torch.Tensor:
        moving = self.packing.moved(at, round)
        moved_p = theta_d[moving] - self.anchor_d[moving] + self.residual_d[moving]
        return torch.cat([moved_p, self.anchor_d[self.packing.refreshed(at, round)]])

    def _restart_at(self, model_d: torch.Tensor) -> None:
        super()._restart_at(model_d)
        self._is_public, self._exchange = False, None
        self.residual_d = torch.zeros_like(model_d)
