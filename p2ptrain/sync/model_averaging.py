"""The one strategy that averages models: what its parts leave open is done here, in the order in which a round goes.

A node holds its anchor phi, its public estimate xhat (what its neighbours think its model is) and an estimate of every
neighbour. A round, after the inner steps made theta of phi:

    encode     the voice tells its neighbours of theta; xhat moves by what it said (encoder.py)
    apply      xhat_j += q_j for each neighbour's q_j: bit for bit what neighbour j did to its own
    aggregate  the company says over whom, the council by which rule, the blend makes theta' of the vectors (mixing.py);
               phi <- OuterStep(phi, theta'); the model is corrected by (1 - mixing) (phi - theta)

In a round that tells a part of the model, only that part is averaged, and has an outer optimizer of its own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from p2ptrain import aggregate, outer
from p2ptrain.aggregate.base import Clips, Rows
from p2ptrain.outer import OuterOptimizer
from p2ptrain.sync.base import Message, RoundResult
from p2ptrain.sync.decoding import Estimates
from p2ptrain.sync.encoder import ScheduledEncoder
from p2ptrain.sync.fault_tolerance import FaultTolerance
from p2ptrain.sync.fragments import Fragment
from p2ptrain.sync.loss_scorer import Judge, LossScorer
from p2ptrain.sync.mixing import Blend, MixInputs, spread, tracked
from p2ptrain.sync.peer_selection import EVERYONE, PeerSelection
from p2ptrain.sync.sync_config import SyncConfig
from p2ptrain.sync.vectors import check_model, to_bytes

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
    """See the module. Memory: (3 + neighbours) fp32 vectors of size d and two more at work; what the outer optimizer
    and the voice remember; and, where fragments travel, a copy of every member's fragment while a round is closed.
    """

    def __init__(self, config: SyncConfig, parts: AveragingParts) -> None:
        self.name = config.strategy
        self.config = config
        self.encoder = parts.encoder
        self.anchor_d = self.encoder.public_d
        """phi: where the inner steps of this round began. Replaced, never changed in place."""
        self._parts = parts
        self._genesis_d = self.anchor_d
        self._known = Estimates(self._genesis_d, self.encoder.decoder)
        self._loss_scorer = LossScorer(self._genesis_d.numel())
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
        """See SyncStrategy."""
        self._check_shape(theta_d)
        check_model(theta_d)
        message = self.encoder.draft(theta_d, anchor_d=self.anchor_d, round=round)
        self.encoder.commit(message)
        return message

    def apply(self, peer: str, codec: str, payload: bytes) -> None:
        """See SyncStrategy and Estimates."""
        self._known.apply(peer, codec, payload)

    def track(self, peer: str, base: bytes | None) -> None:
        """See SyncStrategy and Estimates."""
        self._known.track(peer, base)

    def forget(self, peer: str) -> None:
        """See SyncStrategy."""
        self._known.forget(peer)

    def aggregate(self, theta_d: torch.Tensor, staleness: Mapping[str, int], *, round: int) -> RoundResult:
        """See SyncStrategy. Named neighbours with no estimate are passed over.

        The consensus distance is that of the public estimates, own included: what all of them can be seen to hold.
        """
        self._check_shape(theta_d)
        heard = sorted(staleness.keys() & self.estimates.keys())  # sorted: sums do not depend on who came first
        # Drawn among all whom we know: both partners draw from the same names, however late either one's update is.
        chosen = self._parts.peer_selection.chosen(sorted(self.estimates), round)
        members = [peer for peer in chosen if peer in staleness]
        rule, robust = self._fault_tolerance.rule(len(members) + 1)
        part = self.encoder.schedule.part(round)
        theta_p, anchor_p = part.of(theta_d), part.of(self.anchor_d)
        clipped: tuple[str, ...] = ()
        if rule is None or not members:
            target_p = theta_p.clone()
        else:
            self._loss_scorer.begin(theta_d, part, round)
            target_p = self._parts.blend(self._table(theta_p, anchor_p, members, staleness, round), rule)
            if isinstance(rule, Clips):
                clipped = tuple(members[row - 1] for row in rule.clipped if row > 0)  # row 0 is own model
        return RoundResult(
            correction_d=self._step(theta_d, target_p, part),
            anchor_d=self.anchor_d,
            consensus_distance=spread(self.public_d, [self.estimates[peer] for peer in heard]),
            members=len(members) + 1,
            robust=robust,
            clipped=clipped,
        )

    def adopt(self, staleness: Mapping[str, int]) -> torch.Tensor:
        """See SyncStrategy. The trimmed mean with f, or with what the neighbours allow: their median at the least.

        Trimmed whatever the aggregator is: a newcomer has no model of its own to hold against a lie. Where there are
        fewer than 2 f + 1 donors, but several, the own anchor is one more: the median of two donors and of where we
        stand is never beyond the honest one of them.
        """
        donors = [self.estimates[peer] for peer in sorted(staleness.keys() & self.estimates.keys())]
        if not donors:
            raise ValueError("no neighbour is tracked: there is no model to adopt")
        if 1 < len(donors) <= 2 * self.config.f:
            donors.append(self.anchor_d)
        rule = aggregate.get("trimmed_mean", f=min(self.config.f, (len(donors) - 1) // 2))
        rows = Rows(len(donors), donors[0].numel(), lambda part: torch.stack([donor_d[part] for donor_d in donors]))
        adopted_d = rule.reduce(rows)
        self._restart_at(adopted_d)
        return adopted_d.clone()

    def judge_by(self, judge: Judge) -> None:
        """See Judged."""
        self._loss_scorer.judge = judge

    def budget(self, bytes_per_s: float, seconds: float) -> None:
        """See SyncStrategy."""
        self.encoder.budget(bytes_per_s, seconds)

    @property
    def rung(self) -> str:
        """See SyncStrategy."""
        return self.encoder.rung

    def snapshot(self) -> bytes:
        """See SyncStrategy: fp32 little-endian."""
        return to_bytes(self.public_d)

    def estimate(self, peer: str) -> bytes | None:
        """See SyncStrategy: fp32 little-endian."""
        return to_bytes(self.estimates[peer]) if peer in self.estimates else None

    def state_dict(self) -> dict[str, torch.Tensor]:
        """See SyncStrategy: `anchor`; the outer optimizers' buffers as `outer.<part>.<name>`; the voice's memory as
        `encoder.<name>`; `held`, the f that no round may fall below (fault_tolerance.py), int64 (1,)."""
        state = {"anchor": self.anchor_d}
        for index, optimizer in enumerate(self._outers):
            state |= {f"{_OUTER}{index}.{name}": value for name, value in optimizer.state_dict().items()}
        state |= {_VOICE + name: value for name, value in self.encoder.state_dict().items()}
        return state | ({_HELD: torch.tensor([self._fault_tolerance.held])} if self._fault_tolerance.held else {})

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        """See SyncStrategy. The public estimate starts again at the anchor, as the base of a new chain."""
        if "anchor" not in state or not all(self._fits(name, value) for name, value in state.items()):
            raise ValueError("the sync state belongs to another model or strategy: its vectors have other sizes")
        check_model(state["anchor"])
        self._restart_at(state["anchor"].clone())
        for index, optimizer in enumerate(self._outers):
            optimizer.load_state_dict(_below(f"{_OUTER}{index}.", state))
        self.encoder.load_state_dict(_below(_VOICE, state))
        self._fault_tolerance.resume(int(state[_HELD]) if _HELD in state else 0)

    def _fits(self, name: str, value: torch.Tensor) -> bool:
        if name.startswith(_VOICE):  # checked by the voice
            return True
        if name.startswith(_OUTER):
            index = name.split(".")[1]
            known = index.isdecimal() and int(index) < len(self._outers)
            # A buffer is a vector of the part's size, or a counter.
            return known and value.shape in {(self.encoder.schedule.parts[int(index)].numel,), (1,)}
        return value.shape == {"anchor": self._genesis_d.shape, _HELD: (1,)}.get(name)

    def _step(self, theta_d: torch.Tensor, target_p: torch.Tensor, part: Fragment) -> torch.Tensor:
        """The outer step of a part towards its target: the anchor moves. What that corrects the model by (d,)."""
        phi_p = self._outers[part.index].step(part.of(self.anchor_d), target_p)
        correction_p = (phi_p - part.of(theta_d)).mul_(1 - self._parts.mixing)
        self.anchor_d = part.put(self.anchor_d, phi_p)
        return part.put(torch.zeros_like(theta_d), correction_p) if part.count > 1 else correction_p

    def _table(
        self,
        theta_p: torch.Tensor,
        anchor_p: torch.Tensor,
        members: Sequence[str],
        staleness: Mapping[str, int],
        round: int,
    ) -> MixInputs:
        schedule, own_gamma = self.encoder.schedule, self.config.gamma
        part = schedule.part(round)
        return MixInputs(
            theta_p=theta_p,
            anchor_p=anchor_p,
            public_p=part.of(self.public_d),
            others=[part.of(self.estimates[peer]) for peer in members],
            weights=[self._weight(staleness[peer]) for peer in members],
            loss_scorer=self._loss_scorer,
            gamma=self.encoder.gamma(round) if own_gamma is None or schedule.is_exact(round) else own_gamma,
        )

    def _weight(self, staleness: int) -> float:
        return float((1 + max(0, staleness)) ** -self.config.staleness_exponent)

    def _fresh_outers(self) -> list[OuterOptimizer]:
        options = self.config.outer_options()
        return [outer.get(self.config.outer, **options) for _ in self.encoder.schedule.parts]

    def _restart_at(self, model_d: torch.Tensor) -> None:
        self.anchor_d = model_d
        self.encoder.restart(model_d)
        self._outers = self._fresh_outers()

    def _check_shape(self, theta_d: torch.Tensor) -> None:
        if theta_d.shape != self._genesis_d.shape:
            raise ValueError(
                f"parameters of shape {tuple(theta_d.shape)}, the model's is {tuple(self._genesis_d.shape)}"
            )


def _below(prefix: str, state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
