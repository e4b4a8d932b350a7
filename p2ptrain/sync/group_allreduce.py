"""Group all-reduce of whole models: a group's models are averaged by exchange, and nobody tracks anybody.

    pack       theta_i as bytes C(theta_i), of which every part can be read alone (packing.py)
    reduce     of each part its owner makes C(Agg over the group of decode C(theta_j)), which all others take
    finish     theta' = theta_i + gamma c (Agg - decode C(theta_i)); exact codecs go to Agg itself
               phi <- OuterStep(phi, theta'); the model is corrected by phi - theta

c is 1, or what the round's graph has this group step by (graphs/exchange_groups.py). It is no matter of the owners',
whose Agg is the same for every c.

The difference to the own model as others read it is what counts, so that members who agree stay where they are, however
coarsely the models travelled.

**A lying contribution is bounded by the aggregator, a lying owner is not**: what the owner of a part reduced nobody can
check, and all others of its group take it: 1/k of the model, or all of one that has one part only, in the round in
which it is the liar's turn to own that. docs/decisions/0017 and 0022.

Cost, of k members and vectors of M bytes as packed: 2 (k-1)/k M sent, a pair 1 M, however many neighbours there are.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Final

import torch

from p2ptrain import compress
from p2ptrain.aggregate import Aggregator
from p2ptrain.aggregate.base import Rows, by_columns
from p2ptrain.compress.base import PayloadError
from p2ptrain.sync.base import Reduced, RoundResult
from p2ptrain.sync.encoder import FragmentSchedule, TrackedEncoder
from p2ptrain.sync.fragments import Fragment
from p2ptrain.sync.model_averaging import AveragingParts, ModelAveraging
from p2ptrain.sync.packing import Packing
from p2ptrain.sync.peer_selection import TO_THE_MEAN, PeerSelection, in_turn, shared_seed
from p2ptrain.sync.sync_config import SyncConfig
from p2ptrain.sync.vectors import check_model

LARGEST_GROUP: Final = 64
"""Of the network's exchanges (gossip's limits.MAX_GROUP)."""

PIECES_HELD: Final = 3
"""Pieces of the members' models that are held decoded: threads read side by side, and a chunk may end in the next one.
Of eight members, as fp16, each has 16 MiB."""


def run_key(config: SyncConfig) -> str:
    """Strategy and codec: members who have others, or none, could give each other nothing."""
    return f"{config.strategy} None {config.compressor}"  # None: no size of groups; runs are known by this text


class GroupAllReduce(ModelAveraging):
    """Averages whole models within a group, by parts. Memory: the anchor, which between exchanges is the public model
    too, and what the outer optimizer remembers; from `pack` to `finish` the packed model, and the others' packed parts
    with what was made of them."""

    def __init__(self, config: SyncConfig, genesis_d: torch.Tensor, own: str, peer_selection: PeerSelection) -> None:
        schedule = FragmentSchedule.of(genesis_d.numel(), config.compressor, config.codec_options())
        super().__init__(
            config,
            genesis_d,
            AveragingParts(
                encoder=TrackedEncoder(schedule, genesis_d, config.estimate_dtype), peer_selection=peer_selection
            ),
        )
        self._own = own
        self._peer_selection = peer_selection
        self._seed = shared_seed(genesis_d)
        codec = compress.get(config.compressor, **config.codec_options())
        self.packing = Packing(codec, genesis_d.numel())
        self._packed = b""
        self._heard = 1
        self._step = TO_THE_MEAN
        """Of the round whose group was asked for last."""
        self._is_public = False
        """Whether the anchor is the public model too, and lent for no other reason."""

    def peer_selection(self, peers: Collection[str], *, round: int) -> list[str]:
        """Return who takes part in this round's exchange, own name included, in the order of their parts. `finish` goes
        the step that belongs to this group."""
        others = sorted(set(peers) - {self._own})
        chosen = self._peer_selection.chosen(others, round)
        self._step = self._peer_selection.step(others, round)
        return in_turn([self._own, *chosen], self._seed, round)

    @property
    def part_bytes(self) -> int:
        """The bytes of a piece: parts begin at multiples of them."""
        return self.packing.part_bytes

    def packed(self, theta_d: torch.Tensor, *, round: int) -> bytes:
        """Return what travels of a model, which may be a lie; nothing changes."""
        return self.packing.pack(theta_d)

    def told(self, theta_d: torch.Tensor) -> torch.Tensor:
        """Return the vector that stands for a model in what is packed: itself."""
        return theta_d

    def pack(self, theta_d: torch.Tensor, *, round: int) -> bytes:
        """Return the model after the inner steps as bytes; it becomes the public model, and is not to be changed until
        `finish`. ValueError when not finite."""
        self._check_shape(theta_d)
        check_model(theta_d)
        self.encoder.restart(theta_d)
        self._lent, self._is_public = self._lent and not self._is_public, False
        self._packed, self._heard = self.packed(theta_d, round=round), 1
        return self._packed

    def reduce(self, packed: Mapping[str, bytes | memoryview], *, group: Sequence[str], part: slice) -> bytes:
        """Reduce one part of several members' models to as many bytes, a piece at a time. Rows are models, in the order
        in which members come. Every owner makes the same bytes of them."""
        there = self._readable(packed)
        self._heard = len(there)
        rule, _ = self._fault_tolerance.rule(len(there))
        if rule is None:
            return bytes(packed[self._own])
        return b"".join(map(self._reducing.pack, self._reduced(rule, list(there.values()))))

    @property
    def _reducing(self) -> Packing:
        """What reads and writes pieces that are reduced."""
        return self.packing

    def _readable(self, packed: Mapping[str, bytes | memoryview]) -> dict[str, bytes | memoryview]:
        """What members gave of a part, but for what is no vector of the own one's length."""
        size = len(packed[self._own])
        readers = {self.packing, self._reducing}  # in both: what is sane turned may not be so turned back
        return {
            name: data
            for name, data in packed.items()
            if len(data) == size and all(_can_read(reader, data) for reader in readers)
        }

    def _reduced(self, rule: Aggregator, there: Sequence[bytes | memoryview]) -> Iterator[torch.Tensor]:
        """The aggregate of a part, a piece at a time. Rows are members."""
        pack = self._reducing
        numel = pack.numel_of(len(there[0]))

        @lru_cache(maxsize=PIECES_HELD)
        def models(index: int) -> torch.Tensor:
            return torch.stack([pack.piece(data, index) for data in there])

        def read(at: slice) -> torch.Tensor:
            begin = at.start // pack.piece_numel
            pieces = range(begin, max(begin + 1, -(-at.stop // pack.piece_numel)))  # of no columns: to see the device
            first = begin * pack.piece_numel
            model_nc = models(pieces[0]) if len(pieces) == 1 else torch.cat([*map(models, pieces)], dim=1)
            return model_nc[:, at.start - first : at.stop - first]

        columns = by_columns(rule, Rows(len(there), numel, read))
        for index, at in enumerate(pack.pieces(numel)):
            models(index)  # once, before several threads ask for it
            yield columns(at)

    def finish(
        self, theta_d: torch.Tensor, group: Sequence[str], parts: Sequence[Reduced], *, round: int
    ) -> RoundResult:
        """Close the round with the reduced parts; where one is missing, own values stay."""
        self._lent = True  # the caller may hold the old anchor, as it was returned
        return self.finish_(theta_d.clone(), group, parts, round=round)

    def finish_(
        self, theta_d: torch.Tensor, group: Sequence[str], parts: Sequence[Reduced], *, round: int
    ) -> RoundResult:
        """Do so in place, a piece at a time: `theta_d` becomes the correction, and the anchor the new one."""
        self._check_shape(theta_d)
        self._own_anchor()
        width, step, squares = self.packing.piece_numel, (self.config.gamma or 1.0) * self._step, 0.0
        there = self._that_came(parts)
        came = any(part.owner != self._own for part in there)
        found = self._pieces_of(there)

        def target(at: slice) -> torch.Tensor:
            nonlocal squares
            index = at.start // width
            if index not in found:
                return theta_d[at]
            mean_p, own_p = self.packing.piece(*found[index]), self.packing.piece(self._packed, index)
            move_p = torch.sub(mean_p, own_p, out=own_p)
            squares += float(torch.linalg.vector_norm(move_p)) ** 2
            goes_there = self.packing.exact and step == TO_THE_MEAN
            return mean_p if goes_there else move_p.mul_(step).add_(theta_d[at])

        moved = self._move_(theta_d, target, Fragment(theta_d.numel()), self.packing.pieces(theta_d.numel()))
        members = len(group) if came else self._heard
        self.encoder.restart(self.anchor_d)
        self._lent = self._is_public = True
        self._packed = b""
        return RoundResult(
            correction_d=moved.correction_d,
            anchor_d=self.anchor_d,
            snapshot_d=moved.snapshot_d,
            consensus_distance=squares**0.5,
            members=members,
            robust=self._fault_tolerance.rule(members)[1],
        )

    def _pieces_of(self, parts: Sequence[Reduced]) -> dict[int, tuple[bytes, int]]:
        """Return for each piece of the packed vector that came the part that has it, and which piece of the part it
        is."""
        return {
            part.start // self.part_bytes + index: (data, index)
            for _, part, data in parts
            if data is not None
            for index in range(-(-len(data) // self.part_bytes))
        }

    def _that_came(self, parts: Sequence[Reduced]) -> list[Reduced]:
        """The parts that are here and can be read."""
        return [
            it
            for it in parts
            if it.data is not None and len(it.data) == it.part.stop - it.part.start and _can_read(self.packing, it.data)
        ]


def _can_read(packing: Packing, data: bytes | memoryview) -> bool:
    try:
        packing.check(data)
    except PayloadError:  # the bytes are the ones that were announced: what they mean is nobody else's business
        return False
    return True
