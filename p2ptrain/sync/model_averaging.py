"""The one strategy that averages models: it does what its parts leave open, in the order of a round.

A node holds its anchor phi, its public estimate xhat (what its neighbours think its model is) and an estimate of every
neighbour. A round, after the inner steps made theta of phi:

    encode     the encoder makes a message of theta; xhat moves by that message (encoder.py)
    apply      xhat_j += q_j for each neighbour's q_j: bit for bit what neighbour j did to its own
    aggregate  peer selection says over whom, fault tolerance by which rule, mixing makes theta' of the vectors;
               phi <- OuterStep(phi, theta'); the model is corrected by (1 - mixing) (phi - theta)

In a round that sends a part of the model, only that part is averaged. Each part has its own outer optimizer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

from p2ptrain import aggregate, outer
from p2ptrain.aggregate.base import Averages, Clips, Columns, Rows, by_columns
from p2ptrain.compress.base import PayloadError
from p2ptrain.compress.payload_layout import encode_slices_of
from p2ptrain.outer import Average, BySlices, OuterOptimizer
from p2ptrain.outer.base import KeepsMomentum, Move
from p2ptrain.protocols import implements
from p2ptrain.saved.filed_vector import FiledVector, Refused
from p2ptrain.saved.nameless_file import NamelessFile
from p2ptrain.sync.base import ALL_WHOLE, Message, RoundResult
from p2ptrain.sync.decoding import Estimates, NewFile
from p2ptrain.sync.encoder import ScheduledEncoder, TrackedEncoder
from p2ptrain.sync.fault_tolerance import FaultTolerance
from p2ptrain.sync.fragments import Fragment, zeros_but_for_a_part
from p2ptrain.sync.loss_scorer import Judge, LossScorer
from p2ptrain.sync.mixing import Blend, MixInputs, OuterMomentum, segments, spread, tracked
from p2ptrain.sync.peer_selection import EVERYONE, PeerSelection
from p2ptrain.sync.refinements import Refinements
from p2ptrain.sync.sync_config import SyncConfig
from p2ptrain.sync.vectors import ByteSource, check_model, to_bytes, values_of, view_of, whole

_OUTER, _VOICE, _HELD = "outer.", "voice.", "held"


@dataclass(frozen=True, kw_only=True)
class AveragingParts:
    """What a strategy is made of."""

    encoder: ScheduledEncoder
    peer_selection: PeerSelection = EVERYONE
    blend: Blend = tracked
    mixing: float = 0.0
    """Share of the local parameters that a correction leaves."""


class _Moved(NamedTuple):
    correction_d: torch.Tensor
    snapshot_d: torch.Tensor
    """The model before the correction, with it."""


class ModelAveraging:
    """Averages models once a round. Memory: the anchor; own and each neighbour's estimate in the precision that
    `sync.estimates` says, the neighbours' unless they lie in files; the initial model, unless it lies in a file; what
    the outer optimizer and the encoder remember. At work nothing more of their size where `aggregate_` is given a whole
    model; where a fragment is averaged, as much as it has.
    """

    def __init__(self, config: SyncConfig, genesis_d: torch.Tensor, parts: AveragingParts) -> None:
        self.name = config.strategy
        self.config = config
        self.encoder = parts.encoder
        self.anchor_d = genesis_d
        """phi: where the inner steps of this round began. Changed in place by `aggregate_` alone."""
        self._lent = True
        """Whether the anchor is somebody else's vector too: it is copied before it is changed in place."""
        self._parts = parts
        self.largest_gamma = 1.0
        """Bounds the codec's consensus step in rounds that are not exact: what a drift correction stands."""
        self._numel = genesis_d.numel()
        self._slice_of: int | None = None
        self._known = Estimates(genesis_d, self.encoder.decoder, config.estimate_dtype)
        self._loss_scorer = LossScorer(self._numel)
        self._fault_tolerance = FaultTolerance(
            config.aggregator, config.f, config.rule_options(self._loss_scorer.score)
        )
        self._outers = self._fresh_outers()
        self._refinements = Refinements(config.layers, self.encoder.decoder) if config.layers else None
        self.layers: tuple[Message, ...] = ()
        """The refinements of the newest message, coarsest first."""

    @property
    def public_d(self) -> torch.Tensor:
        """xhat: what the neighbours hold for this node."""
        return self.encoder.public_d

    def work_on_slice_of(self, numel: int) -> None:
        """Come to the same bits as a strategy does for the model (numel,) of which this one has a slice."""
        self._slice_of = numel
        for codec in self.encoder.schedule.codecs:
            encode_slices_of(codec, numel)

    @property
    def known(self) -> Estimates:
        """The neighbours' estimates, as they are held."""
        return self._known

    @property
    def is_cuttable(self) -> bool:
        """Whether a strategy of its own for each slice of the vectors does to them what this one does to the whole, as
        far as neither codec nor aggregator looks at more than a slice."""
        parts = self._parts
        is_of_all = len(self.encoder.schedule.parts) == 1 and parts.peer_selection is EVERYONE and not parts.mixing
        by_slices = all(implements(optimizer, BySlices) for optimizer in self._outers)
        in_slices = is_of_all and by_slices and self._refinements is None
        return in_slices and parts.blend is tracked and isinstance(self.encoder, TrackedEncoder)

    @property
    def estimates(self) -> dict[str, torch.Tensor]:
        """xhat_j by neighbour, to be read."""
        return {peer: whole(model_d) for peer, model_d in self._known.models.items()}

    def encode(self, theta_d: torch.Tensor, *, round: int) -> Message:
        """Return the message of this round and advance the public estimate. ValueError on a model that is not
        finite."""
        self._check_shape(theta_d)
        check_model(theta_d)
        message = self.encoder.draft(theta_d.contiguous(), anchor_d=self.anchor_d, round=round)
        self.encoder.commit(message)
        if self._refinements is not None:
            self.layers = self._refinements.encode(theta_d - self.public_d)
        return message

    def apply(self, peer: str, codec: str, payload: bytes) -> None:
        """Advance a neighbour's estimate by its payload. Raises PayloadError; the estimate is then unchanged."""
        self._known.apply(peer, codec, payload)
        if self._refinements is not None:
            self._refinements.advanced(peer, Message(codec, payload))

    def refine(self, peer: str, layer: int, codec: str, payload: bytes) -> None:
        """Take a refinement of a neighbour's newest update. Raises PayloadError; nothing is then taken."""
        if self._refinements is None:
            raise PayloadError("unknown_codec", "a refinement where the run has none")
        self._refinements.take(peer, layer, Message(codec, payload))

    def refined_by(self, sent: Mapping[str, int]) -> None:
        """Note how many of our refinements each neighbour has: an edge is averaged as finely as both ends see it."""
        if self._refinements is not None:
            self._refinements.sent = sent

    def track(self, peer: str, base: ByteSource | None) -> None:
        """Begin a neighbour's estimate at the genesis (None) or a snapshot. Raises PayloadError."""
        self._known.track(peer, base)
        if self._refinements is not None:
            self._refinements.forget(peer)

    def share_estimate(self, peer: str, model_d: torch.Tensor) -> None:
        """Hold `model_d` (d,), of the estimates' type, as a neighbour's estimate, which the caller advances: for
        simulations of many nodes in one process. ValueError for another shape or type."""
        self._known.share(peer, model_d)

    def forget(self, peer: str) -> None:
        """Drop a neighbour's estimate; no-op where there is none."""
        self._known.forget(peer)
        if self._refinements is not None:
            self._refinements.forget(peer)

    def aggregate(
        self,
        theta_d: torch.Tensor,
        staleness: Mapping[str, int],
        *,
        round: int,
        shares: Mapping[str, float] = ALL_WHOLE,
    ) -> RoundResult:
        """Close the round over the named neighbours, each so many rounds old. Those with no estimate are left out.

        The consensus distance is that of the public estimates, own included: what all of them can be seen to hold.
        """
        self._lent = True  # the caller may hold the old anchor, as it was returned
        return self.aggregate_(theta_d.clone(), staleness, round=round, shares=shares)

    def aggregate_(
        self,
        theta_d: torch.Tensor,
        staleness: Mapping[str, int],
        *,
        round: int,
        shares: Mapping[str, float] = ALL_WHOLE,
    ) -> RoundResult:
        """Do so in place, a slice at a time: the anchor becomes the new one, and `theta_d` what corrects the model by
        that; where only a part of the model is averaged, or moved by a share, `theta_d` becomes the snapshot as
        corrected. An outer optimizer that is not `BySlices` makes vectors of its own.

        When it raises, each parameter of the anchor is the old or the new one."""
        self._check_shape(theta_d)
        known = self._known.models
        heard = sorted(staleness.keys() & known.keys())  # sorted: sums do not depend on who came first
        # Drawn among all whom we know: both partners draw from the same names, however late either one's update is.
        chosen = self._parts.peer_selection.chosen(sorted(known), round)
        members = [peer for peer in chosen if peer in staleness]
        rule, robust = self._fault_tolerance.rule(len(members) + 1)
        part = self.encoder.schedule.part(round)
        self._own_anchor()
        clipped: tuple[str, ...] = ()
        averaged = 1
        if rule is None or not members:
            moved = self._move_(theta_d, lambda at: part.read(theta_d, at), part)
        else:
            self._loss_scorer.begin(theta_d, part, round)
            weights = [self._weight(staleness[peer], shares.get(peer, 1.0)) for peer in members]
            target = self._parts.blend(self._table(theta_d, members, weights, round), rule)
            if implements(rule, Clips):
                clipped = tuple(members[row - 1] for row in rule.clipped if row > 0)  # row 0 is own model
            self._loss_scorer.end()
            if part.count == 1 and implements(rule, Averages):
                averaged = max(1, rule.averages(len(members) + 1))
            moved = self._move_(theta_d, target, part)
        return RoundResult(
            correction_d=moved.correction_d,
            anchor_d=self.anchor_d,
            snapshot_d=moved.snapshot_d,
            consensus_distance=spread(self.public_d, [known[peer] for peer in heard]),
            members=len(members) + 1,
            robust=robust,
            averaged=averaged,
            clipped=clipped,
        )

    def regional_model(self, round: int) -> torch.Tensor:
        """Return the anchor (d,): the model after the newest closed round."""
        return self.anchor_d

    def move_(self, result: RoundResult, shift_d: torch.Tensor) -> RoundResult:
        """Move the anchor, and what the newest round does to the model, by `shift_d` (d,), in place. Outer momentum is
        of moves within the region, and stays."""
        self._own_anchor()
        self.anchor_d.add_(shift_d)
        result.correction_d.add_(shift_d)
        snapshot_d = result.snapshot_d
        if snapshot_d is None or snapshot_d is self.anchor_d or snapshot_d is result.anchor_d:
            snapshot_d = None if snapshot_d is None else self.anchor_d
        else:
            snapshot_d.add_(shift_d)
        return replace(result, anchor_d=self.anchor_d, snapshot_d=snapshot_d)

    def begin_at(self, shift_d: torch.Tensor) -> torch.Tensor:
        """Move by `shift_d` (d,) and begin there, with no state of rounds before. Return the model, which is the anchor
        itself, and not a copy: valid until the next `aggregate_`."""
        self._own_anchor()
        self.anchor_d.add_(shift_d)
        self._restart_at(self.anchor_d)
        return self.anchor_d

    def adopt(self, staleness: Mapping[str, int]) -> torch.Tensor:
        """Return a late joiner's model: the trimmed mean of the neighbours' estimates. It becomes own anchor and base.

        It is trimmed with f, or with what the neighbours allow: it is their median at the least.

        Trimmed whatever the aggregator is: a newcomer has no model of its own to hold against a lie. Where there are
        fewer than 2 f + 1 donors, but several, the own anchor is one more: the median of two donors and of where we
        stand is never beyond the honest one of them.

        The result is the anchor itself, and not a copy: valid until the next `aggregate_`.
        """
        known = self._known.models
        donors = [known[peer] for peer in sorted(staleness.keys() & known.keys())]
        if not donors:
            raise ValueError("no neighbour is tracked: there is no model to adopt")
        self._own_anchor()
        if 1 < len(donors) <= 2 * self.config.f:
            donors.append(self.anchor_d)
        rule = aggregate.get("trimmed_mean", f=self._outliers(len(donors)))

        def read(at: slice) -> torch.Tensor:
            return torch.stack([torch.from_numpy(values_of(donor_d, at)) for donor_d in donors])

        adopted = by_columns(rule, Rows(len(donors), self._numel, read, self._slice_of))
        for at in segments(self._numel):  # a slice of the anchor is read for the same slice alone
            self.anchor_d[at] = adopted(at)
        self._restart_at(self.anchor_d)
        return self.anchor_d

    def judge_by(self, judge: Judge) -> None:
        """Score models by `judge` from now on, for an aggregator that tries them."""
        self._loss_scorer.judge = judge

    def budget(self, bytes_per_s: float, seconds: float) -> None:
        """Tell `adaptive` compressors what the link carries in the time that a message may take."""
        self.encoder.budget(bytes_per_s, seconds)

    @property
    def rung(self) -> str:
        """Return what an `adaptive` compressor made the newest message with; "" for others."""
        return self.encoder.rung

    def snapshot(self) -> bytes:
        """Return the own public estimate, exact: fp32 or bf16, little-endian."""
        return to_bytes(self.public_d)

    def estimate(self, peer: str) -> bytes | None:
        """Return a neighbour's estimate, exact, or None: fp32 or bf16, little-endian."""
        return to_bytes(whole(self._known.models[peer])) if peer in self._known.models else None

    def snapshot_view(self) -> memoryview:
        """Return `snapshot` without a copy: valid until the public estimate moves."""
        return view_of(self.public_d)

    def estimate_view(self, peer: str) -> memoryview | NamelessFile | None:
        """Return `estimate` without a copy: valid until that estimate moves."""
        model_d = self._known.models.get(peer)
        return model_d.source() if isinstance(model_d, FiledVector) else None if model_d is None else view_of(model_d)

    def estimate_model(self, peer: str) -> torch.Tensor | None:
        """Return a neighbour's estimate as fp32 (d,): itself where it is held so."""
        return whole(self._known.models[peer]).float() if peer in self._known.models else None

    def keep_genesis_in(self, file: NamelessFile) -> None:
        """Keep the initial model in this file and not in memory. The vector that this strategy was built with is given
        away: it may become the anchor's. Raises OSError."""
        self._known.keep_genesis_in(file)
        self.encoder.unshare()
        self._lent = False

    def drop_genesis(self) -> None:
        """Keep the initial model no more: who does gives it to `track` as a base. What was this strategy's first vector
        is given away, as by `keep_genesis_in`."""
        self._known.drop_genesis()
        self.encoder.unshare()
        self._lent = False

    def keep_estimates_in(self, new_file: NewFile, refused: Refused) -> None:
        """Keep the neighbours' estimates in files from now on. `refused` is told when the disk does not take one, which
        is then in memory."""
        self._known.keep_in(new_file, refused)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return the own state: `anchor`; outer buffers as `outer.<part>.<name>`; the encoder's memory as
        `encoder.<name>`; `held`, the f that no round may fall below (fault_tolerance.py), int64 (1,)."""
        state = {"anchor": self.anchor_d}
        for index, optimizer in enumerate(self._outers):
            state |= {f"{_OUTER}{index}.{name}": value for name, value in optimizer.state_dict().items()}
        state |= {_VOICE + name: value for name, value in self.encoder.state_dict().items()}
        return state | ({_HELD: torch.tensor([self._fault_tolerance.held])} if self._fault_tolerance.held else {})

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        """Take up `state_dict`. ValueError when it is of another model. The public estimate starts again at the anchor,
        as the base of a new chain."""
        if "anchor" not in state or not all(self._fits(name, value) for name, value in state.items()):
            raise ValueError(
                "the sync state belongs to another model or strategy: its vectors have other sizes or types"
            )
        check_model(state["anchor"])
        self._restart_at(state["anchor"].clone())
        for index, optimizer in enumerate(self._outers):
            optimizer.load_state_dict(_below(f"{_OUTER}{index}.", state))
        self.encoder.load_state_dict(_below(_VOICE, state))
        self._fault_tolerance.resume(int(state[_HELD]) if _HELD in state else 0)

    def _fits(self, name: str, value: torch.Tensor) -> bool:
        if name.startswith(_VOICE):  # checked by the encoder
            return True
        if name.startswith(_OUTER):
            index = name.split(".")[1]
            known = index.isdecimal() and int(index) < len(self._outers)
            # A buffer is a vector of the part's size, or a counter.
            return known and (value.shape == (1,) or _is_vector(value, self.encoder.schedule.parts[int(index)].numel))
        return value.shape == (1,) if name == _HELD else name == "anchor" and _is_vector(value, self._numel)

    def _move_(
        self, theta_d: torch.Tensor, target: Columns, part: Fragment, slices: Sequence[slice] | None = None
    ) -> "_Moved":
        """The outer step of a part towards its target, by `slices` of the part: the anchor moves, and `theta_d` becomes
        the correction or, where that is not of every parameter or not all of the way, the snapshot as corrected."""
        slices = segments(part.numel) if slices is None else slices
        share, is_whole = 1 - self._parts.mixing, part.count == 1 and self._parts.mixing == 0
        correction_d = theta_d if is_whole else zeros_but_for_a_part(theta_d.numel())
        target, move = self._begin_step(target, part, slices)
        for at in slices:
            phi_c, theta_c = part.read(self.anchor_d, at), part.read(theta_d, at)
            move(at, phi_c, target(at))
            part.write_(self.anchor_d, at, phi_c)
            correction_c = torch.sub(phi_c, theta_c).mul_(share)
            part.write_(correction_d, at, correction_c)
            if not is_whole:
                part.write_(theta_d, at, correction_c.add_(theta_c))
        return _Moved(correction_d, self.anchor_d if is_whole else theta_d)

    def _begin_step(self, target: Columns, part: Fragment, slices: Sequence[slice]) -> tuple[Columns, Move]:
        """The part's outer step: its target, and what moves a slice of the anchor towards it."""
        optimizer = self._outers[part.index]
        if implements(optimizer, BySlices):
            return target, optimizer.begin_step(part.numel)
        target_p = torch.cat([target(at) for at in slices])
        phi_p = optimizer.step(part.of(self.anchor_d), target_p)
        return lambda at: phi_p[at], Average().begin_step(part.numel)

    def _outliers(self, donors: int) -> int:
        """Of so many models that one is adopted from, those left out at either end."""
        return min(self.config.f, (donors - 1) // 2)

    def _own_anchor(self) -> None:
        """Hold the anchor as a vector of its own, to be changed in place."""
        if self._lent:
            self.anchor_d, self._lent = self.anchor_d.clone(), False

    def _table(
        self,
        theta_d: torch.Tensor,
        members: Sequence[str],
        weights: Sequence[float],
        round: int,
    ) -> MixInputs:
        part = self.encoder.schedule.part(round)
        gamma = self._gamma(round)
        gammas = [self._gamma_of(peer, gamma) for peer in members]
        refinements: dict[int, torch.Tensor] = {}
        if self._refinements is not None and (depths := self._refinements.depths(members)):
            moved = self._refinements.differences(depths)
            refinements = {place: moved[peer] for place, peer in enumerate(members) if peer in moved}
            finer = {peer: self._refined_gamma(self._refinements.gamma(depth)) for peer, depth in depths.items()}
            gammas = [max(min(gamma, own), finer.get(peer, 0.0)) for peer, own in zip(members, gammas, strict=True)]
            gamma = max(gamma, *gammas)
        return MixInputs(
            part=part,
            theta_d=theta_d,
            anchor_d=self.anchor_d,
            public_d=self.public_d,
            others=[self._known.models[peer] for peer in members],
            weights=weights,
            loss_scorer=self._loss_scorer,
            gamma=gamma,
            gammas=gammas,
            slice_of=self._slice_of,
            refinements=refinements,
            momentum=self._momentum(part),
        )

    def _momentum(self, part: Fragment) -> OuterMomentum | None:
        """The part's outer momentum, as far as its optimizer shows any."""
        optimizer = self._outers[part.index]
        if not implements(optimizer, KeepsMomentum) or optimizer.momentum_d is None:
            return None
        return OuterMomentum(optimizer.momentum_d, 1 - optimizer.alpha)

    def _refined_gamma(self, codecs: float) -> float:
        return min(codecs, self.largest_gamma) if self.config.gamma is None else self.config.gamma

    def _gamma(self, round: int) -> float:
        if self.encoder.schedule.is_exact(round):
            return self.encoder.gamma(round)
        return min(self.encoder.gamma(round), self.largest_gamma) if self.config.gamma is None else self.config.gamma

    def _gamma_of(self, peer: str, own: float) -> float:
        """The consensus step that a neighbour takes towards us; own one, where it does not say, or where the user has
        set one for all."""
        said = self._known.gammas.get(peer)
        return own if said is None or self.config.gamma is not None else said

    def _weight(self, staleness: int, share: float) -> float:
        fresh = float((1 + max(0, staleness)) ** -self.config.staleness_exponent)
        # The members of a group have all as many partners, however many neighbours each has.
        return fresh * share if self._parts.peer_selection is EVERYONE else fresh

    def _fresh_outers(self) -> list[OuterOptimizer]:
        options = self.config.outer_options()
        return [outer.get(self.config.outer, **options) for _ in self.encoder.schedule.parts]

    def _restart_at(self, model_d: torch.Tensor) -> None:
        self.anchor_d, self._lent = model_d, False
        self.encoder.restart(model_d)
        self.encoder.unshare()
        self._outers = self._fresh_outers()
        if self._refinements is not None:
            self._refinements.restart()
            self.layers = ()

    def _check_shape(self, theta_d: torch.Tensor) -> None:
        if theta_d.shape != (self._numel,):
            raise ValueError(f"parameters of shape {tuple(theta_d.shape)}, the model's is {(self._numel,)}")


def _below(prefix: str, state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}


def _is_vector(value: torch.Tensor, numel: int) -> bool:
    return value.shape == (numel,) and value.dtype is torch.float32
