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
from dataclasses import dataclass

import torch

from p2ptrain import aggregate, outer
from p2ptrain.aggregate.base import Clips, Rows
from p2ptrain.outer import Average, OuterOptimizer
from p2ptrain.saved.nameless_file import NamelessFile
from p2ptrain.sync.base import Message, RoundResult
from p2ptrain.sync.decoding import Estimates
from p2ptrain.sync.encoder import ScheduledEncoder
from p2ptrain.sync.fault_tolerance import FaultTolerance
from p2ptrain.sync.fragments import Fragment
from p2ptrain.sync.loss_scorer import Judge, LossScorer
from p2ptrain.sync.mixing import Blend, MixInputs, spread, tracked
from p2ptrain.sync.peer_selection import EVERYONE, PeerSelection
from p2ptrain.sync.sync_config import SyncConfig
from p2ptrain.sync.vectors import ByteSource, check_model, to_bytes, view_of

_OUTER, _VOICE, _HELD = "outer.", "voice.", "held"


@dataclass(frozen=True, kw_only=True)
class AveragingParts:
    """What a strategy is made of."""

    encoder: ScheduledEncoder
    peer_selection: PeerSelection = EVERYONE
    blend: Blend = tracked
    mixing: float = 0.0
    """Share of the local parameters that a correction leaves."""


class ModelAveraging:
    """Averages models once a round. Memory: the anchor, and own and each neighbour's estimate in the precision that
    `sync.estimates` says; the initial model, unless it lies in a file; what the outer optimizer and the encoder
    remember. At work nothing more where `aggregate_` is given a whole model and the outer step is `average`; else two
    vectors of size d, and, where fragments travel, a copy of every member's fragment.
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
        self._numel = genesis_d.numel()
        self._known = Estimates(genesis_d, self.encoder.decoder, config.estimate_dtype)
        self._loss_scorer = LossScorer(self._numel)
        self._fault_tolerance = FaultTolerance(
            config.aggregator, config.f, config.rule_options(self._loss_scorer.score)
        )
        self._outers = self._fresh_outers()

    @property
    def public_d(self) -> torch.Tensor:
        """xhat: what the neighbours hold for this node."""
        return self.encoder.public_d

    @property
    def estimates(self) -> dict[str, torch.Tensor]:
        """xhat_j by neighbour."""
        return self._known.models

    def encode(self, theta_d: torch.Tensor, *, round: int) -> Message:
        """Return the message of this round and advance the public estimate. ValueError on a model that is not
        finite."""
        self._check_shape(theta_d)
        check_model(theta_d)
        message = self.encoder.draft(theta_d.contiguous(), anchor_d=self.anchor_d, round=round)
        self.encoder.commit(message)
        return message

    def apply(self, peer: str, codec: str, payload: bytes) -> None:
        """Advance a neighbour's estimate by its payload. Raises PayloadError; the estimate is then unchanged."""
        self._known.apply(peer, codec, payload)

    def track(self, peer: str, base: ByteSource | None) -> None:
        """Begin a neighbour's estimate at the genesis (None) or a snapshot. Raises PayloadError."""
        self._known.track(peer, base)

    def forget(self, peer: str) -> None:
        """Drop a neighbour's estimate; no-op where there is none."""
        self._known.forget(peer)

    def aggregate(self, theta_d: torch.Tensor, staleness: Mapping[str, int], *, round: int) -> RoundResult:
        """Close the round over the named neighbours, each so many rounds old. Those with no estimate are left out.

        The consensus distance is that of the public estimates, own included: what all of them can be seen to hold.
        """
        self._lent = True  # the caller may hold the old anchor, as it was returned
        return self.aggregate_(theta_d.clone(), staleness, round=round)

    def aggregate_(self, theta_d: torch.Tensor, staleness: Mapping[str, int], *, round: int) -> RoundResult:
        """Do so with no vector beside `theta_d`, which becomes the correction, and the anchor, which becomes the new
        one: where the whole model is averaged, and the outer step is `average`, as that does not look back."""
        self._check_shape(theta_d)
        heard = sorted(staleness.keys() & self.estimates.keys())  # sorted: sums do not depend on who came first
        # Drawn among all whom we know: both partners draw from the same names, however late either one's update is.
        chosen = self._parts.peer_selection.chosen(sorted(self.estimates), round)
        members = [peer for peer in chosen if peer in staleness]
        rule, robust = self._fault_tolerance.rule(len(members) + 1)
        part = self.encoder.schedule.part(round)
        alone = rule is None or not members
        in_place = part.count == 1 and isinstance(self._outers[part.index], Average)
        clipped: tuple[str, ...] = ()
        if alone:
            correction_d = self._keep_(theta_d) if in_place else self._step(theta_d, part.of(theta_d).clone(), part)
        else:
            assert rule is not None
            self._loss_scorer.begin(theta_d, part, round)
            out_d = self._own_anchor() if in_place and self._parts.blend is tracked else None
            table = self._table(theta_d, members, staleness, round, out_d)
            try:
                target_p = self._parts.blend(table, rule)
            except BaseException:
                if out_d is not None:
                    out_d.copy_(theta_d)  # it was being written to, and must be a model
                raise
            if isinstance(rule, Clips):
                clipped = tuple(members[row - 1] for row in rule.clipped if row > 0)  # row 0 is own model
            del table
            self._loss_scorer.end()
            correction_d = self._move_(theta_d, target_p) if in_place else self._step(theta_d, target_p, part)
        whole = part.count == 1 and self._parts.mixing == 0
        return RoundResult(
            correction_d=correction_d,
            anchor_d=self.anchor_d,
            snapshot_d=self.anchor_d if whole else None,
            consensus_distance=spread(self.public_d, [self.estimates[peer] for peer in heard]),
            members=len(members) + 1,
            robust=robust,
            clipped=clipped,
        )

    def adopt(self, staleness: Mapping[str, int]) -> torch.Tensor:
        """Return a late joiner's model: the trimmed mean of the neighbours' estimates. It becomes own anchor and base.

        It is trimmed with f, or with what the neighbours allow: it is their median at the least.

        Trimmed whatever the aggregator is: a newcomer has no model of its own to hold against a lie. Where there are
        fewer than 2 f + 1 donors, but several, the own anchor is one more: the median of two donors and of where we
        stand is never beyond the honest one of them.

        The result is the anchor itself, and not a copy: valid until the next `aggregate_`.
        """
        donors = [self.estimates[peer] for peer in sorted(staleness.keys() & self.estimates.keys())]
        if not donors:
            raise ValueError("no neighbour is tracked: there is no model to adopt")
        out_d: torch.Tensor | None = self._own_anchor()
        if 1 < len(donors) <= 2 * self.config.f:
            donors.append(self.anchor_d)
            out_d = None
        rule = aggregate.get("trimmed_mean", f=min(self.config.f, (len(donors) - 1) // 2))
        rows = Rows(
            len(donors), self._numel, lambda part: torch.stack([donor_d[part].float() for donor_d in donors]), out_d
        )
        self._restart_at(rule.reduce(rows))
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
        return to_bytes(self.estimates[peer]) if peer in self.estimates else None

    def snapshot_view(self) -> memoryview:
        """Return `snapshot` without a copy: valid until the public estimate moves."""
        return view_of(self.public_d)

    def estimate_view(self, peer: str) -> memoryview | None:
        """Return `estimate` without a copy: valid until that estimate moves."""
        return view_of(self.estimates[peer]) if peer in self.estimates else None

    def estimate_model(self, peer: str) -> torch.Tensor | None:
        """Return a neighbour's estimate as fp32 (d,): itself where it is held so."""
        return self.estimates[peer].float() if peer in self.estimates else None

    def keep_genesis_in(self, file: NamelessFile) -> None:
        """Keep the initial model in this file and not in memory. The vector that this strategy was built with is given
        away: it may become the anchor's. Raises OSError."""
        self._known.keep_genesis_in(file)
        self.encoder.unshare()
        self._lent = False

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

    def _step(self, theta_d: torch.Tensor, target_p: torch.Tensor, part: Fragment) -> torch.Tensor:
        """The outer step of a part towards its target: the anchor moves. What that corrects the model by (d,)."""
        phi_p = self._outers[part.index].step(part.of(self.anchor_d), target_p)
        correction_p = (phi_p - part.of(theta_d)).mul_(1 - self._parts.mixing)
        self.anchor_d, self._lent = part.put(self.anchor_d, phi_p), False
        return part.put(torch.zeros_like(theta_d), correction_p) if part.count > 1 else correction_p

    def _keep_(self, theta_d: torch.Tensor) -> torch.Tensor:
        """Nobody is listened to: the anchor becomes `theta_d`, and `theta_d` the correction, which is nothing."""
        if self._lent:
            self.anchor_d, self._lent = theta_d, False
            return torch.zeros_like(theta_d)
        self.anchor_d.copy_(theta_d)
        return theta_d.zero_()

    def _move_(self, theta_d: torch.Tensor, target_d: torch.Tensor) -> torch.Tensor:
        """The outer step `average`: the anchor becomes the target, and `theta_d` what that corrects the model by."""
        self.anchor_d, self._lent = target_d, False
        return torch.sub(target_d, theta_d, out=theta_d).mul_(1 - self._parts.mixing)

    def _own_anchor(self) -> torch.Tensor:
        """The anchor's vector, to be written over; another one where it is not ours alone."""
        return torch.empty_like(self.anchor_d) if self._lent else self.anchor_d

    def _table(
        self,
        theta_d: torch.Tensor,
        members: Sequence[str],
        staleness: Mapping[str, int],
        round: int,
        out_d: torch.Tensor | None,
    ) -> MixInputs:
        schedule, own_gamma = self.encoder.schedule, self.config.gamma
        part = schedule.part(round)
        return MixInputs(
            theta_p=part.of(theta_d),
            anchor_p=part.of(self.anchor_d),
            public_p=part.of(self.public_d),
            others=[part.of(self.estimates[peer]) for peer in members],
            weights=[self._weight(staleness[peer]) for peer in members],
            loss_scorer=self._loss_scorer,
            gamma=self.encoder.gamma(round) if own_gamma is None or schedule.is_exact(round) else own_gamma,
            out_p=out_d,
        )

    def _weight(self, staleness: int) -> float:
        return float((1 + max(0, staleness)) ** -self.config.staleness_exponent)

    def _fresh_outers(self) -> list[OuterOptimizer]:
        options = self.config.outer_options()
        return [outer.get(self.config.outer, **options) for _ in self.encoder.schedule.parts]

    def _restart_at(self, model_d: torch.Tensor) -> None:
        self.anchor_d, self._lent = model_d, False
        self.encoder.restart(model_d)
        self.encoder.unshare()
        self._outers = self._fresh_outers()

    def _check_shape(self, theta_d: torch.Tensor) -> None:
        if theta_d.shape != (self._numel,):
            raise ValueError(f"parameters of shape {tuple(theta_d.shape)}, the model's is {(self._numel,)}")


def _below(prefix: str, state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}


def _is_vector(value: torch.Tensor, numel: int) -> bool:
    return value.shape == (numel,) and value.dtype is torch.float32
