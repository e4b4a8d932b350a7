"""The all-reduce strategies: a group's models are averaged by exchange, and nobody tracks anybody.

    pack       theta_i as bytes C(theta_i), of which every part can be read alone (packing.py)
    reduce     of each part its owner makes C(Agg over the group of decode C(theta_j)), which all others take
    finish     theta' = theta_i + gamma (Agg - decode C(theta_i)); exact codecs go to Agg itself
               phi <- OuterStep(phi, theta'); the model is corrected by phi - theta

The difference to the own model as others read it is what counts, so that members who agree stay where they are, however
coarsely the models travelled.

**A lying contribution is bounded by the aggregator, a lying owner is not**: what the owner of a part reduced nobody can
check, and all others of its group take it: 1/k of the model, or all of one that has one part only, in the round in
which it is the liar's turn to own that. docs/decisions/0017 and 0022.

Cost, of k members and vectors of M bytes as packed: 2 (k-1)/k M sent, a pair 1 M, however many neighbours there are.
"""

from collections.abc import Collection, Mapping, Sequence

import torch

from p2ptrain import compress
from p2ptrain.aggregate.base import Rows
from p2ptrain.compress.base import PayloadError
from p2ptrain.sync.base import Reduced, RoundResult
from p2ptrain.sync.encoder import FragmentSchedule, TrackedEncoder
from p2ptrain.sync.fragments import Fragment
from p2ptrain.sync.model_averaging import AveragingParts, ModelAveraging
from p2ptrain.sync.packing import Packing
from p2ptrain.sync.peer_selection import PeerSelection, in_turn, shared_seed
from p2ptrain.sync.sync_config import SyncConfig
from p2ptrain.sync.vectors import check_model


def run_key(config: SyncConfig) -> str:
    """Strategy, group size and codec: members who have others, or none, could give each other nothing."""
    return f"{config.strategy} {config.options.get('group')} {config.compressor}"


class GroupAllReduce(ModelAveraging):
    """Averages whole models within a group, by parts. Memory: three fp32 vectors of size d, the packed model, and what
    the outer optimizer remembers; while a part is reduced, as much as a model and the reduced part again."""

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

    def peer_selection(self, peers: Collection[str], *, round: int) -> list[str]:
        """Return who takes part in this round's exchange, own name included, in the order of their parts."""
        chosen = self._peer_selection.chosen(sorted(set(peers) - {self._own}), round)
        return in_turn([self._own, *chosen], self._seed, round)

    def pack(self, theta_d: torch.Tensor) -> bytes:
        """Return the model after the inner steps as bytes; it becomes the public model. ValueError when not finite."""
        self._check_shape(theta_d)
        check_model(theta_d)
        self.encoder.restart(theta_d.clone())
        self._packed, self._heard = self.packing.pack(theta_d), 1
        return self._packed

    def reduce(self, packed: Mapping[str, bytes | memoryview]) -> bytes:
        """Reduce one part of several members' models to as many bytes. Rows are models, in the order in which members
        come."""
        models = [model_r for data in packed.values() if (model_r := self._read(data)) is not None]
        self._heard = len(models)
        rule, _ = self._fault_tolerance.rule(len(models))
        if rule is None:
            return bytes(packed[self._own])
        rows = Rows(len(models), models[0].numel(), lambda part: torch.stack([model_r[part] for model_r in models]))
        return self.packing.pack(rule.reduce(rows))

    def finish(
        self, theta_d: torch.Tensor, group: Sequence[str], parts: Sequence[Reduced], *, round: int
    ) -> RoundResult:
        """Close the round with the reduced parts; where one is missing, own values stay."""
        self._check_shape(theta_d)
        target_d, squares, came = theta_d.clone(), 0.0, False
        for owner, part, data in parts:
            mean_r = self._read(data) if data is not None else None
            span = self.packing.span(part)
            if mean_r is None or mean_r.numel() != span.stop - span.start:
                continue
            came = came or owner != self._own
            move_r = mean_r - self.packing.unpack(memoryview(self._packed)[part])
            squares += float(torch.linalg.vector_norm(move_r)) ** 2
            gamma = self.config.gamma or 1.0
            target_d[span] = mean_r if self.packing.exact and gamma == 1.0 else theta_d[span] + gamma * move_r
        members = len(group) if came else self._heard
        correction_d = self._step(theta_d, target_d, Fragment(theta_d.numel()))
        self.encoder.restart(self.anchor_d)
        self._lent = True
        self._packed = b""
        return RoundResult(
            correction_d=correction_d,
            anchor_d=self.anchor_d,
            consensus_distance=squares**0.5,
            members=members,
            robust=self._fault_tolerance.rule(members)[1],
        )

    def _read(self, data: bytes | memoryview) -> torch.Tensor | None:
        try:
            return self.packing.unpack(data)
        except PayloadError:  # the bytes are the ones that were announced: what they mean is nobody else's business
            return None
