"""What a sync strategy is: the learning rule between two inner phases, on flat CPU fp32 vectors, with no network.

    strategy = build(SyncConfig(strategy="noloco"), genesis_d, own="peer id")   # ValueError on what cannot be meant
    strategy.track(peer, None)                                    # each neighbour, from the genesis or a snapshot
    message = strategy.encode(theta_d, round=r)                   # after the inner steps; .codec and .payload travel
    strategy.apply(peer, message.codec, message.payload)          # at every neighbour, whenever it arrives
    result = strategy.aggregate(theta_d, {peer: staleness}, round=r)   # the round closes over these neighbours
    theta += result.correction_d                                  # on parameters that may have moved on since

The runtime (node/training/sync_loop.py) drives it so. `round` counts a node's rounds from 0 and is the same number in
`encode` and `aggregate`; partners of a pair or a group find each other by it, and by the ids `own` and `peer`, so
drivers give every node the same names. Which codec travels may change by the round: take it from the message. Not
thread-safe: the runtime calls one method at a time, from whichever worker thread.

A strategy is a `StrategySpec` (strategy_spec.py): small parts put together, and the defaults that belong to them:

    whom to average with    peer_selection.py    all neighbours, a partner, a group; which of them in which round
    what travels            encoder.py           the difference to the public estimate, or a fragment of it
    how it is averaged      fault_tolerance.py   the aggregator, with the f that the members allow
    what that does          outer/               the outer step; sparse_loco.py mixes in a way of its own before it

A strategy that is an `AllReduceStrategy` averages by exchanges within a group instead, where the driver can carry one
out:

    group = strategy.peer_selection(peers, round=r)                      # the same at all of them, own name among them
    packed = strategy.pack(theta_d, round=r)                      # what the others may read, by parts
    reduced = strategy.reduce({member: its bytes of the part that we own, ...}, group=group, part=part)
    result = strategy.finish(theta_d, group, parts, round=r)      # with what came of all parts

`gradient` averages gradients at every step, not models at every round. It is no SyncStrategy: `build` refuses it with
one line, and `build_gradient` makes a `GradientStrategy` for drivers that have the trainer's two half steps:

    loss, gradient_d = trainer.gradient(); message = strategy.encode(gradient_d, step=t)
    strategy.apply(peer, message.codec, message.payload)
    trainer.apply_gradient(strategy.aggregate(peers, step=t))     # the same bits at every member
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple, Protocol, runtime_checkable

import torch

from p2ptrain.inner.base import MomentBuffer
from p2ptrain.inner.inner_state import BufferPart, InnerState
from p2ptrain.saved.nameless_file import NamelessFile
from p2ptrain.sync.sliced_vectors import SlicedBytes
from p2ptrain.sync.vectors import ByteSource

ALL_WHOLE: Mapping[str, float] = MappingProxyType({})


class Message(NamedTuple):
    """What travels in a round: `payload`, and the wire name of the codec that reads it (at most 32 characters)."""

    codec: str
    payload: bytes


@dataclass(frozen=True, kw_only=True)
class RoundResult:
    """What a closed round does to the model."""

    correction_d: torch.Tensor
    """To be added to the moving parameters: phi_new - theta_snapshot where the whole model was averaged. fp32 (d,)."""
    anchor_d: torch.Tensor
    """phi_new, the outer parameters: what is to be evaluated, and what momentum over rounds compares. Not a copy."""
    snapshot_d: torch.Tensor | None = None
    """What is evaluated and saved, where the strategy holds such a vector: the anchor, where the whole model was
    averaged. Not a copy. None: it is the sum of the snapshot, which then was not changed, and the correction."""
    consensus_distance: float
    """Root mean square over all named neighbours (own model included) of the L2 distance to their mean."""
    members: int
    """How many vectors there were to aggregate, own included."""
    robust: bool
    """Whether members sufficed for the promise about `f` liars. If not, the aggregator ran with the largest f that
    the members allow, (members - 1) // 2, or, where that is below an f once held, not at all (fault_tolerance.py)."""
    optimizer_state: Sequence[BufferPart] = ()
    """What parts of the inner optimizer's buffers are from here on; all else stays."""
    averaged: int = 1
    """Of how many members, own included, each value of the new model is an average at least. 1 where nothing was
    averaged, or a part of the model, or where the aggregator does not say (aggregate.base.Averages)."""
    clipped: tuple[str, ...] = ()
    """Neighbours that the aggregator did not follow in full: clipped, or left out by a rule for gossip."""


@runtime_checkable
class SyncStrategy(Protocol):
    """State: own anchor and public estimate, one estimate a neighbour."""

    name: str

    def encode(self, theta_d: torch.Tensor, *, round: int) -> Message:
        """Return the message of this round, from the parameters after the inner steps; advances the public estimate.
        ValueError when the parameters are not finite: own training has diverged."""

    def apply(self, peer: str, codec: str, payload: bytes) -> None:
        """Advance a neighbour's estimate by its payload. Raises PayloadError; the estimate is then unchanged."""

    def track(self, peer: str, base: ByteSource | None) -> None:
        """Begin a neighbour's estimate: from the genesis model (None) or from a snapshot. Raises PayloadError."""

    def forget(self, peer: str) -> None:
        """Drop a neighbour's estimate and its memory. No-op when it has none."""

    def aggregate(
        self,
        theta_d: torch.Tensor,
        staleness: Mapping[str, int],
        *,
        round: int,
        shares: Mapping[str, float] = ALL_WHOLE,
    ) -> RoundResult:
        """Close the round over the named neighbours, each so many rounds old. `shares`: of its weight that a
        neighbour has, where not all of it (mixing.metropolis_shares)."""

    def adopt(self, staleness: Mapping[str, int]) -> torch.Tensor:
        """Adopt the robust aggregate of the neighbours' estimates, as a late joiner does, and return it. It becomes
        own anchor and own public estimate, which is to be announced as a new base. It may be the anchor itself: it is
        read, and not changed. ValueError without neighbours."""

    def budget(self, bytes_per_s: float, seconds: float) -> None:
        """What the link carries in the time that a message may take: `adaptive` compressors keep to it from the next
        message on, others take no notice. ValueError unless both are above 0."""

    @property
    def rung(self) -> str:
        """What an `adaptive` compressor made the newest message with; "" where there is none."""

    def snapshot(self) -> bytes:
        """Own public estimate, exact (what `track` takes at the other side)."""

    def estimate(self, peer: str) -> bytes | None:
        """Return a neighbour's estimate, exact: the same bytes as the neighbour's own `snapshot`. None when it has
        none."""

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Own state (anchor, outer buffers) for a checkpoint. Neighbours' estimates are not kept: after a restart each
        neighbour is tracked anew from a snapshot, and own chain begins a new epoch."""

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        """Take up `state_dict`. ValueError when it is of another model."""


class Reduced(NamedTuple):
    """A part of the packed models of a group: which bytes, and what its owner made of them. None: that did not come."""

    owner: str
    part: slice
    data: bytes | None


@runtime_checkable
class SharesEstimates(SyncStrategy, Protocol):
    """A strategy that can do with estimates that are not its own: a thousand nodes in a process hold each one once."""

    def share_estimate(self, peer: str, model_d: torch.Tensor) -> None:
        """Hold `model_d` (d,), which the caller advances, as a neighbour's estimate. ValueError for another shape or
        type."""


@runtime_checkable
class InPlace(SyncStrategy, Protocol):
    """A strategy that can do with no vectors beside its own, for models that fill the memory."""

    def aggregate_(
        self,
        theta_d: torch.Tensor,
        staleness: Mapping[str, int],
        *,
        round: int,
        shares: Mapping[str, float] = ALL_WHOLE,
    ) -> RoundResult:
        """`aggregate`, but `theta_d` is given away: it may come back as the correction or the snapshot. The old
        anchor's vector may become the new one's. When it raises, each parameter of the anchor is the old or the new
        one."""

    def snapshot_view(self) -> memoryview | SlicedBytes:
        """Return `snapshot` without a copy: valid until the next `encode`, `adopt` or `load_state_dict`."""

    def estimate_view(self, peer: str) -> memoryview | NamelessFile | SlicedBytes | None:
        """Return `estimate` without a copy: valid until the next `apply` of that peer."""

    def estimate_model(self, peer: str) -> torch.Tensor | None:
        """Return a neighbour's estimate as a model fp32 (d,), without a copy where it is held so; valid as long."""

    def keep_genesis_in(self, file: NamelessFile) -> None:
        """Keep the initial model, from which newcomers are tracked, in this open file from now on. Raises OSError."""


@runtime_checkable
class Layered(SyncStrategy, Protocol):
    """A strategy whose updates have refinements, for neighbours whose links have time for them (refinements.py)."""

    @property
    def layers(self) -> Sequence[Message]:
        """Return the refinements of the newest message, coarsest first."""

    def refine(self, peer: str, layer: int, codec: str, payload: bytes) -> None:
        """Take layer `layer`, from 1, of a neighbour's newest update. Raises PayloadError; nothing is then taken."""

    def refined_by(self, sent: Mapping[str, int]) -> None:
        """Note how many of our refinements each neighbour has."""


@runtime_checkable
class HasAnchor(SyncStrategy, Protocol):
    """A strategy that shows where the steps of a round began."""

    @property
    def anchor_d(self) -> torch.Tensor:
        """Return the outer parameters fp32 (d,), not a copy."""


@runtime_checkable
class EstimatesInFiles(SyncStrategy, Protocol):
    """A strategy that can keep the neighbours' estimates on disk."""

    def keep_estimates_in(self, new_file: Callable[[], NamelessFile], refused: Callable[[OSError], None]) -> None:
        """Keep each estimate that begins from now on in a file of its own, with the same values. `refused` is told,
        from any thread, when the disk does not take one: it is then in memory, with nothing lost."""


@runtime_checkable
class AllReduceStrategy(SyncStrategy, Protocol):
    """A strategy whose rounds are exchanges: each member of a group reduces one part of all their models, for all of
    them, and nobody tracks anybody. Neighbours' models are tracked while a node enters a run, for `adopt`.

    Calls are for one round, in the order in which they stand here; `reduce` may come from another thread, while
    `snapshot` is asked for, and does not come where a node owns no part. By the other methods, which need no exchange,
    the same group averages over tracked estimates.
    """

    @property
    def part_bytes(self) -> int:
        """In how many bytes parts are counted (packing.py): all members have as many."""

    def peer_selection(self, peers: Collection[str], *, round: int) -> list[str]:
        """Who meets in this round: own name and those of some of the members of the run that we know, in the order in
        which they own parts. All who know the same peers find the same groups. Own name alone: nobody."""

    def pack(self, theta_d: torch.Tensor, *, round: int) -> bytes:
        """Return the model after the inner steps, or how it moved, as bytes; parts begin at multiples of `part_bytes`.
        The model is not to be changed until `finish`. ValueError when it is not finite: own training has diverged."""

    def reduce(self, packed: Mapping[str, bytes | memoryview], *, group: Sequence[str], part: slice) -> bytes:
        """Reduce the bytes `part` of what several members packed, own among them, to as many bytes. Members come in the
        order of the `group`. What cannot be read counts as absent. Where too few are left for the promise about f that
        was kept before (fault_tolerance.py), own values stay."""

    def finish(
        self, theta_d: torch.Tensor, group: Sequence[str], parts: Sequence[Reduced], *, round: int
    ) -> RoundResult:
        """Close the round. Where a part is missing or is none, own values stay. The consensus distance is that of own
        model to the group's mean, as far as it came."""


@runtime_checkable
class TakesMissedParts(AllReduceStrategy, Protocol):
    """One that can use a reduced part after its round."""

    def take_missed(self, parts: Sequence[Reduced]) -> None:
        """Take parts of the last round that came after `finish`. Call it before the next `pack`."""


class AnchorSteps(Protocol):
    """The inner optimizer on the swarm's model (training/anchor_optimizer.py)."""

    @property
    def numel(self) -> int:
        """Return the number of parameters."""

    @property
    def buffers(self) -> Mapping[str, torch.Tensor]:
        """The optimizer's whole state, by name. Changed in place."""

    def steps_in(self, round: int) -> int:
        """Return how many steps the round has."""

    @property
    def longest(self) -> float:
        """Return the largest norm of a gradient, by which longer ones are clipped."""

    def advance_(self, x_d: torch.Tensor, gradient_d: torch.Tensor, round: int) -> None:
        """Move the model `x_d` (d,) in place by a round's steps, all with `gradient_d`."""

    def load(self, buffers: Mapping[str, torch.Tensor]) -> None:
        """Take up `buffers`. ValueError when they are another optimizer's or model's."""


@runtime_checkable
class TakesInnerState(AllReduceStrategy, Protocol):
    """One that takes more of a round's steps than where they led: what its `StrategySpec.wants`."""

    def take_inner_state(self, state: InnerState) -> None:
        """Take what the steps of a round left behind. Call it before `pack`. ValueError when it is not finite: own
        training has diverged."""


@runtime_checkable
class AveragesMoments(TakesInnerState, Protocol):
    """One that averages the inner optimizer's moments as well."""

    def average_moments(self, buffers: Sequence[MomentBuffer]) -> None:
        """Average these buffers from now on. Called once, before all else."""


@runtime_checkable
class StepsAnchor(TakesInnerState, Protocol):
    """One that averages the gradients that local steps met, and moves the anchor by the inner optimizer."""

    def steps_by(self, steps: AnchorSteps) -> None:
        """Move the anchor by `steps` from now on. Called once, before all else. ValueError when of another model."""

    def asks_for_model(self) -> bool:
        """Return whether the others' model should be adopted now: own anchor is another one, and would from now on stay
        theirs. It is asked for once, and again in as many rounds."""

    def optimizer_state(self) -> dict[str, torch.Tensor]:
        """Return copies of the swarm's optimizer state, by name: what the inner optimizer goes on from."""


@runtime_checkable
class InPlaceAllReduce(AllReduceStrategy, Protocol):
    """One that can do with no vectors beside its own, for models that fill the memory."""

    def finish_(
        self, theta_d: torch.Tensor, group: Sequence[str], parts: Sequence[Reduced], *, round: int
    ) -> RoundResult:
        """`finish`, but `theta_d` is given away: it may come back as the correction. The old anchor's vector may become
        the new one's."""


@runtime_checkable
class UpdateEncoder(Protocol):
    """Makes a node's messages, and moves its public estimate by them. A liar has one of its own:
    `strategy.encoder.fork()`, then `draft` of the lie and `commit`, beside the honest `strategy.encode`."""

    public_d: torch.Tensor
    """What the neighbours hold for this node, fp32 or bf16 (d,). `commit` may change it in place."""

    def draft(self, theta_d: torch.Tensor, *, anchor_d: torch.Tensor, round: int) -> Message:
        """Return the message that moves the public estimate towards `theta_d`, reached from `anchor_d`. Moves nothing
        yet."""

    def commit(self, message: Message) -> None:
        """Advance by the last draft, as receivers will. PayloadError, with nothing changed, if they would refuse it."""

    def budget(self, bytes_per_s: float, seconds: float) -> None:
        """Tell `adaptive` compressors what the link carries in the time that a message may take."""

    @property
    def rung(self) -> str:
        """Return what an `adaptive` compressor made the newest message with; "" for others."""

    def fork(self) -> "UpdateEncoder":
        """Return an encoder that goes on from here, without the other's knowledge."""


@runtime_checkable
class GradientStrategy(Protocol):
    """Data parallel: compressed gradients are averaged at every step. State: what compression lost so far."""

    name: str

    def encode(self, gradient_d: torch.Tensor, *, step: int) -> Message:
        """Return the message of this step, from own gradient."""

    def apply(self, peer: str, codec: str, payload: bytes) -> None:
        """Take a member's message of this step. Raises PayloadError; nothing is then taken."""

    def aggregate(self, peers: Collection[str], *, step: int) -> torch.Tensor:
        """Return the averaged gradient (d,) over own message and those of the named peers that came; same bits at
        all."""
