"""Mime: gradients are averaged before the optimizer, not what each member's optimizer made of its own.

    steps      every member begins a round at the anchor with the swarm's optimizer state, takes H steps by itself, and
               sums the gradients that it meets: g_i, their mean
    exchange   as in allreduce.py, of -g_i in place of a difference: q, the aggregate of all members' C(e_i - g_i)
    finish     the anchor takes H steps of the inner optimizer, all with the gradient -q, and so does its state; the
               model becomes the anchor, and its optimizer's state the swarm's

An optimizer that gives every step its length, as Adam and Muon do, does not commute with the mean: where shards are
unlike, what one member alone must learn is 1/n of a mean of steps, and all of a step by the mean gradient. With the
models averaged at every step, exactly, eight domains in unlike languages came to 31% more loss than synchronous
training; with gradients averaged, every second step, to 1.7% (docs/benchmarks.md).

Local steps that follow the swarm's optimizer state are those of MimeLite (Karimireddy et al., 2008.03606), and an
optimizer for the mean at the server's place is that of FedOpt (2003.00295). The server is left out, as every member
does the same with the same bytes; H steps take the place of one, so that rates and momenta mean what they mean in
synchronous training. As in FedOpt own steps have a rate of their own, `local_rate` times the anchor's. Shorter ones are
worse: gradients are then taken behind the points that the anchor passes (decision 0069).

The optimizer's state does not travel. A newcomer's becomes the others' as it fades; until then its anchor moves
otherwise than theirs, so that after SETTLED_STEPS it takes their model once more. A member that missed a part for good
is alike again after `refresh` rounds.

**A lying contribution is bounded by the aggregator, and a lying owner by the optimizer**, unless train.clip_norm is 0:
the mean of each owner's part is clipped as any gradient, a step by it is no longer than others, and no value of the
share of the anchor moves by more than the largest step did. An owner still says where its part goes to, in every round.

The gradients of members are far longer than their mean, and their largest values lie where no other member's do: the
codec rotates first. Without that q2's residual grew to five times a gradient (measured).
Cost, beside allreduce: own gradient, the optimizer's state twice, and the last anchor, for parts that come late. No
byte more.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from typing import Annotated, Final

import torch

from p2ptrain.inner.inner_state import InnerState, whole_buffers
from p2ptrain.sync.allreduce import DifferenceAllReduce, Exchange, ReducedPiece, packing_key
from p2ptrain.sync.base import AnchorSteps, Reduced, RoundResult, SyncStrategy
from p2ptrain.sync.checks import check_differences, check_no_gamma
from p2ptrain.sync.strategy_spec import ALLREDUCE, StrategySpec
from p2ptrain.sync.sync_config import SyncConfig
from p2ptrain.sync.vectors import check_model

SETTLED_STEPS: Final = 60
"""Steps by one gradient after which momenta are alike, whatever they were: three horizons of 0.95. Chosen."""

LEAST_LOCAL_RATE: Final = 0.1
MOST_LOCAL_RATE: Final = 10.0

TINY: Final = 1e-30
"""Stands for a norm that is 0."""

_OPTIMIZER = "optimizer."


def method(
    *,
    refresh: Annotated[int, "Rounds in which all of the anchor has travelled as well: a share of it in each."] = 64,
    local_rate: Annotated[float, "Learning rate of members' own steps, over the anchor's."] = 2.0,
) -> StrategySpec:
    """All-reduce of gradients that local steps met, and the inner optimizer on their mean."""
    if refresh < 1:
        raise ValueError(f"refresh must be at least 1, not {refresh}")
    if not LEAST_LOCAL_RATE <= local_rate <= MOST_LOCAL_RATE:
        limits = f"at least {LEAST_LOCAL_RATE:g} and at most {MOST_LOCAL_RATE:g}"
        raise ValueError(f"local_rate must be {limits}, not {local_rate}")
    return StrategySpec(
        name="mime",
        models=partial(_build, refresh, local_rate),
        averager=ALLREDUCE,
        run_key=_run_key,
        compressor="rotated+q2",
        aggregator="mean",
        f=0,
        check=_check,
        vectors=6,
        wants=frozenset({"gradient"}),
        steps_anchor=True,
        local_rate=local_rate,
    )


def _check(config: SyncConfig) -> None:
    check_no_gamma(config)
    check_differences(config)
    if config.outer != "average":
        raise ValueError(f"{config.strategy} moves the anchor by the inner optimizer: it has no outer one")


def _run_key(config: SyncConfig) -> str:
    """Members who pack otherwise could give each other nothing."""
    return " ".join(map(str, (config.strategy, *packing_key(config))))


def _build(refresh: int, local_rate: float, config: SyncConfig, genesis_d: torch.Tensor, own: str) -> SyncStrategy:
    return Mime(config, genesis_d, own, refresh, local_rate)


@dataclass
class _Before:
    """What a round began with, and what came of it so far: a part that comes late is the reason to take its steps
    again."""

    anchor_d: torch.Tensor
    buffers: Mapping[str, torch.Tensor]
    moved_d: torch.Tensor
    """-q; 0 where nothing came."""
    owed: bool = False
    """Whether own gradient is in the residual."""
    refreshed: list[tuple[slice, torch.Tensor]] = field(default_factory=list)
    """What makes anchors alike again, where."""


class Mime(DifferenceAllReduce):
    """Averages all members' gradients, and steps the anchor by their mean. `steps_by` comes before the first round.

    Memory, beside the anchor: the residual, own gradient, the last anchor and what moved it, and the optimizer's model,
    gradient and state; the state once more as the round began.
    """

    def __init__(self, config: SyncConfig, genesis_d: torch.Tensor, own: str, refresh: int, local_rate: float) -> None:
        super().__init__(config, genesis_d, own, refresh)
        self._local_rate = local_rate
        self._steps: AnchorSteps | None = None
        self._gradient_d = torch.zeros_like(genesis_d)
        self._before: _Before | None = None
        self._alike: int | None = None
        """Steps by the others' gradients since it adopted their model, and had other momenta; None: that does not
        matter (any more)."""
        self._asked = False

    def steps_by(self, steps: AnchorSteps) -> None:
        """Move the anchor by `steps` from now on. ValueError where they are of another model."""
        if steps.numel != self._numel:
            raise ValueError(f"an optimizer of {steps.numel} parameters does not fit a model of {self._numel}")
        self._steps = steps

    def take_gradient(self, gradient_d: torch.Tensor) -> None:
        """Take the mean (d,) of the gradients of a round's steps. Call it before `pack`. ValueError when not finite."""
        self._check_shape(gradient_d)
        check_model(gradient_d)
        self._gradient_d = gradient_d

    def take_inner_state(self, state: InnerState) -> None:
        """Take the mean gradient of a round's steps. ValueError when not finite."""
        assert state.gradient_d is not None, "the strategy wants it"
        self.take_gradient(state.gradient_d)

    def told(self, theta_d: torch.Tensor) -> torch.Tensor:
        """Return the vector whose difference to the anchor is told: the anchor after one step of plain SGD."""
        return self.anchor_d - self._gradient_d

    def pack(self, theta_d: torch.Tensor, *, round: int) -> bytes:
        """Return the gradient as bytes. The model is not to be changed until `finish`. ValueError when not finite."""
        self._check_shape(theta_d)
        check_model(theta_d)
        return super().pack(self.told(theta_d), round=round)

    def finish_(
        self, theta_d: torch.Tensor, group: Sequence[str], parts: Sequence[Reduced], *, round: int
    ) -> RoundResult:
        """Close the round in place: `theta_d` becomes the correction, and the anchor the new one. Where a piece did not
        come the model stays where own steps led, and the anchor where it was. Where none came the anchor goes towards
        where own steps led, as far as steps at its own rate would."""
        self._check_shape(theta_d)
        self._own_anchor()
        packed, self._packed = self._packed, b""
        self._exchange = Exchange(packed, round, group.index(self._own), len(group)) if len(group) > 1 else None
        self._before, self._asked = self._begun(), False
        came = self._came(self._exchange, parts) if self._exchange else {}
        if self._exchange is None or not came:
            self._anchor_steps().advance_(self.anchor_d.clone(), self._gradient_d, round)  # for what it remembers
            self.anchor_d.lerp_(theta_d, 1 / self._local_rate)
            torch.sub(self.anchor_d, theta_d, out=theta_d)
            return self._closed(theta_d, self.anchor_d, distance=0.0, members=1)
        self._owe()
        if self._alike is not None:
            self._alike += self._anchor_steps().steps_in(round)
        closed = self._settled_(theta_d, came, distance=self._advance(self._exchange, came))
        return replace(closed, optimizer_state=whole_buffers(self.optimizer_state()))

    def take_missed(self, parts: Sequence[Reduced]) -> None:
        """Take parts of the last round that came after `finish`: its steps are taken again. The model goes to where
        they lead when the next round closes."""
        if self._exchange is None:
            return
        came = self._came(self._exchange, parts)
        if came:
            self._owe()
            self.anchor_d = self.anchor_d.clone()
            self._advance(self._exchange, came)
            self.encoder.restart(self.anchor_d)
            self._lent = self._is_public = True

    def _owe(self) -> None:
        """Count the gradient of this round, once, as what is to be told: `_heard_of` takes off what was heard."""
        assert self._before is not None, "a round has begun"
        if not self._before.owed:
            self.residual_d -= self._gradient_d
            self._before.owed = True

    def asks_for_model(self) -> bool:
        """Return whether the others' model should be adopted now, by one that has adopted it before and had other
        momenta: these have become theirs, and the anchor has not, as the share of it shows that travelled last. Once,
        and again in as many rounds."""
        if self._alike is None or self._alike < SETTLED_STEPS:
            return False
        self._asked = self._before is not None and any(bool(shift_p.any()) for _, shift_p in self._before.refreshed)
        self._alike = 0 if self._asked else None
        return self._asked

    def optimizer_state(self) -> dict[str, torch.Tensor]:
        """Return copies of the swarm's optimizer state, by name."""
        return {name: buffer.clone() for name, buffer in self._anchor_steps().buffers.items()}

    def _advance(self, exchange: Exchange, came: Mapping[int, ReducedPiece]) -> float:
        before, steps = self._before, self._anchor_steps()
        assert before is not None, "finish_ comes first"
        squares = 0.0
        for _, pieces in groupby(came.items(), key=lambda it: it[0] - it[1].place):  # of one owner's part
            heard, norm2 = [], 0.0
            for index, piece in pieces:
                at, told_p, mean_p, shift_p = self._heard_of(exchange, index, piece)
                squares += float(torch.linalg.vector_norm(mean_p - told_p)) ** 2
                norm2 += float(mean_p.norm()) ** 2
                before.moved_d[at] = mean_p
                before.refreshed.append((self.packing.refreshed(at, exchange.round), shift_p))
                heard.append(at)
            for at in heard:
                before.moved_d[at] *= min(1.0, steps.longest / max(norm2**0.5, TINY))
        self.anchor_d.copy_(before.anchor_d)
        steps.load(before.buffers)
        steps.advance_(self.anchor_d, -before.moved_d, exchange.round)
        for index, at in enumerate(self.packing.spans):
            if index not in exchange.taken:
                self.anchor_d[at] = before.anchor_d[at]
        most = float((self.anchor_d - before.anchor_d).abs().max())
        for at, shift_p in before.refreshed:
            self.anchor_d[at] += shift_p.clamp(-most, most)
        return float(squares**0.5)

    def _outliers(self, donors: int) -> int:
        """All but the middle ones: most of the others have one anchor, to the bit, and newcomers another."""
        return (donors - 1) // 2

    def _begun(self) -> _Before:
        return _Before(self.anchor_d.clone(), self.optimizer_state(), torch.zeros_like(self.anchor_d))

    def _anchor_steps(self) -> AnchorSteps:
        if self._steps is None:
            raise ValueError(f"{self.name} steps by the inner optimizer, and was given none")
        return self._steps

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return the own state, with the swarm's optimizer state."""
        buffers = {} if self._steps is None else self._steps.buffers
        return super().state_dict() | {_OPTIMIZER + name: buffer for name, buffer in buffers.items()}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        """Take up `state_dict`. ValueError when it is of another model or optimizer."""
        own = {name: value for name, value in state.items() if not name.startswith(_OPTIMIZER)}
        buffers = {name.removeprefix(_OPTIMIZER): value for name, value in state.items() if name not in own}
        super().load_state_dict(own)
        self._alike = None  # its momenta come with it
        if buffers or self._steps is not None:
            self._anchor_steps().load(buffers)

    def _restart_at(self, model_d: torch.Tensor) -> None:
        super()._restart_at(model_d)
        self._before = None
        self._alike = None if self._asked else 0
        self._gradient_d = torch.zeros_like(model_d)
