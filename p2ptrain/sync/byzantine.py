"""A liar: a node that trains and listens honestly, and publishes an attack. For tests, and for `--byzantine`.

It is omniscient in its neighbourhood: it knows every tracked model and its own. What it publishes goes the normal way
(an encoder of its own sends the lie, compressed), so that gossip finds nothing to object to; only the aggregator can.
Its honest state is untouched by the lie, so that it keeps learning and remains believable.

An attack is told how the honest ones *moved* in a round, from a common beginning. All begin a round near our anchor,
but what we hold of a neighbour when we speak is of the round before (in a real node nobody has heard this round's
updates yet), and from today's anchor, which is the average of just those models, nobody would seem to have moved. So
each is measured from the anchor that we had in the round that its model is of. Whose model is older than one round, or
of a round that we do not know, is left out. One liar takes another for honest.

Under an all-reduce strategy it knows nobody's model but its own, and lies about that. As the owner of a part it is
honest: what an owner may do nobody can prevent (group_allreduce.py), and it would show nothing of the aggregator.
"""

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Protocol, runtime_checkable

import torch

from p2ptrain.attacks.base import ModelAttack, VectorAttack
from p2ptrain.compress.base import PayloadError
from p2ptrain.inner.inner_state import InnerState
from p2ptrain.protocols import implements
from p2ptrain.saved.nameless_file import NamelessFile
from p2ptrain.sync.base import (
    ALL_WHOLE,
    AllReduceStrategy,
    Message,
    Reduced,
    RoundResult,
    SharesEstimates,
    SyncStrategy,
    TakesInnerState,
    UpdateEncoder,
)
from p2ptrain.sync.fixed_point import Words_d
from p2ptrain.sync.group_allreduce import GroupAllReduce
from p2ptrain.sync.group_sum import GroupSum
from p2ptrain.sync.regional import RegionalStrategy
from p2ptrain.sync.secure_average import NO_PLACEMENTS, SecureAverage
from p2ptrain.sync.vectors import ByteSource, to_bytes, view_of

NOTHING_YET = -1
"""The round before the first: whose model is still the initial one."""


@runtime_checkable
class Observable(SyncStrategy, Protocol):
    """A strategy that a liar can wrap: its vectors can be seen."""

    @property
    def encoder(self) -> UpdateEncoder:
        """Encodes this node's messages."""

    @property
    def anchor_d(self) -> torch.Tensor:
        """Where the inner steps of this round began."""

    @property
    def estimates(self) -> Mapping[str, torch.Tensor]:
        """What is known of each neighbour's model."""


class Byzantine:
    """A strategy that publishes `attack`, and in all else is the honest one it wraps.

    Memory beyond that: the liar's encoder, and the anchor of the round before.
    """

    def __init__(
        self,
        inner: SyncStrategy,
        attack: VectorAttack | ModelAttack,
        *,
        generator: torch.Generator | None = None,
        from_round: int = 0,
    ) -> None:
        """`from_round`: the first round in which it lies."""
        if not isinstance(inner, Observable):
            raise ValueError(f"the strategy {inner.name!r} cannot be attacked: it does not show its vectors")
        self.name = inner.name
        self._inner = inner
        self._attack = attack
        self._generator = generator
        self._from_round = from_round
        self._encoder = inner.encoder.fork()
        """Encodes the lies; `public_d` is what the neighbours hold for this node."""
        self._anchors: dict[int, torch.Tensor] = {}
        """Ours of this round and of the one before."""
        self._rounds: dict[str, int] = dict.fromkeys(inner.estimates, 0)
        """The round of each neighbour's model, as far as it is known. A neighbour that is known already has announced
        the first."""

    def encode(self, theta_d: torch.Tensor, *, round: int) -> Message:
        """Return the message that moves the public estimate to the lie; one that must be refused moves nothing."""
        anchor_d = self._inner.anchor_d
        self._anchors = {at: old_d for at, old_d in self._anchors.items() if at == round - 1}
        self._anchors[round] = anchor_d.clone()
        lie_d = self._lie(theta_d, round) if round >= self._from_round else theta_d
        self._inner.encode(theta_d, round=round)
        message = self._encoder.draft(lie_d, anchor_d=anchor_d, round=round)
        with suppress(PayloadError):
            self._encoder.commit(message)
        return message

    def apply(self, peer: str, codec: str, payload: bytes) -> None:
        """As the honest strategy."""
        self._inner.apply(peer, codec, payload)
        if peer in self._rounds:
            self._rounds[peer] += 1  # everybody publishes once a round

    def track(self, peer: str, base: ByteSource | None) -> None:
        """As the honest strategy."""
        self._inner.track(peer, base)
        self._rounds.pop(peer, None)
        if base is None:
            self._rounds[peer] = NOTHING_YET

    def share_estimate(self, peer: str, model_d: torch.Tensor) -> None:
        """As the honest strategy, where it shares any: the rounds of these models are known by `aggregate`."""
        if not isinstance(self._inner, SharesEstimates):
            raise ValueError(f"the strategy {self.name!r} shares no estimates")
        self._inner.share_estimate(peer, model_d)

    def forget(self, peer: str) -> None:
        """As the honest strategy."""
        self._inner.forget(peer)
        self._rounds.pop(peer, None)

    def aggregate(
        self,
        theta_d: torch.Tensor,
        staleness: Mapping[str, int],
        *,
        round: int,
        shares: Mapping[str, float] = ALL_WHOLE,
    ) -> RoundResult:
        """Do as the honest strategy does."""
        for peer, behind in staleness.items():
            # What we counted may be more: updates still come between the closing of a round and this. Who told nothing
            # yet counts as level at first, since all begin in round 0.
            if self._rounds.get(peer) != NOTHING_YET:
                self._rounds[peer] = max(self._rounds.get(peer, round - behind), round - behind)
        return self._inner.aggregate(theta_d, staleness, round=round, shares=shares)

    def adopt(self, staleness: Mapping[str, int]) -> torch.Tensor:
        """Do as the honest strategy does; the lying starts from there."""
        adopted_d = self._inner.adopt(staleness)
        self._begin_anew()
        return adopted_d

    def begin_at(self, shift_d: torch.Tensor) -> torch.Tensor:
        """Do as the honest strategy does, where it can be moved; the lying starts from there."""
        assert implements(self._inner, RegionalStrategy), "nothing else has regions"
        begun_d = self._inner.begin_at(shift_d)
        self._begin_anew()
        return begun_d

    def budget(self, bytes_per_s: float, seconds: float) -> None:
        """As the honest strategy, for the lies as well: they travel over the same link."""
        self._inner.budget(bytes_per_s, seconds)
        self._encoder.budget(bytes_per_s, seconds)

    @property
    def anchor_d(self) -> torch.Tensor:
        """Return the honest strategy's."""
        return self._inner.anchor_d

    @property
    def rung(self) -> str:
        """That of the lie: it is what travels."""
        return self._encoder.rung

    def snapshot(self) -> bytes:
        """Return the lie sent so far, exact: what `track` takes at the other side."""
        return to_bytes(self._encoder.public_d)

    def estimate(self, peer: str) -> bytes | None:
        """Do as the honest strategy does."""
        return self._inner.estimate(peer)

    def aggregate_(
        self,
        theta_d: torch.Tensor,
        staleness: Mapping[str, int],
        *,
        round: int,
        shares: Mapping[str, float] = ALL_WHOLE,
    ) -> RoundResult:
        """Do as the honest strategy does, with vectors of its own."""
        return self.aggregate(theta_d, staleness, round=round, shares=shares)

    def snapshot_view(self) -> memoryview:
        """Return the lie sent so far, without a copy."""
        return view_of(self._encoder.public_d)

    def estimate_view(self, peer: str) -> memoryview | NamelessFile | None:
        """As the honest strategy."""
        return view_of(self._inner.estimates[peer]) if peer in self._inner.estimates else None

    def estimate_model(self, peer: str) -> torch.Tensor | None:
        """As the honest strategy."""
        return self._inner.estimates[peer].float() if peer in self._inner.estimates else None

    def regional_model(self, round: int) -> torch.Tensor:
        """Return the lie that the neighbours were sent last."""
        return self._encoder.public_d.float()

    def move_(self, result: RoundResult, shift_d: torch.Tensor) -> RoundResult:
        """Do as the honest strategy does, where it can be moved."""
        return self._inner.move_(result, shift_d) if implements(self._inner, RegionalStrategy) else result

    def keep_genesis_in(self, file: NamelessFile) -> None:
        """Leave it in memory: a liar is for tests."""

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Do as the honest strategy does."""
        return self._inner.state_dict()

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        """As the honest strategy; the lying starts from there."""
        self._inner.load_state_dict(state)
        self._begin_anew()

    def _lie(self, theta_d: torch.Tensor, round: int) -> torch.Tensor:
        if isinstance(self._attack, ModelAttack):
            return self._attack.say(theta_d)
        anchor_d = self._inner.anchor_d
        honest_nd = torch.stack([*self._movements(round), theta_d - anchor_d])
        return anchor_d + self._attack(honest_nd, 1, self._generator)[0]

    def _movements(self, round: int) -> list[torch.Tensor]:
        known = [(peer, min(at, round)) for peer, at in sorted(self._rounds.items()) if peer in self._inner.estimates]
        return [self._inner.estimates[peer] - self._anchors[at] for peer, at in known if at in self._anchors]

    def _begin_anew(self) -> None:
        self._encoder = self._inner.encoder.fork()
        self._rounds.clear()


class LyingMember(Byzantine):
    """The same for an all-reduce strategy: what it packs is the lie, and so is the model that newcomers are given."""

    def __init__(
        self,
        inner: GroupAllReduce,
        attack: VectorAttack | ModelAttack,
        *,
        generator: torch.Generator | None = None,
        from_round: int = 0,
    ) -> None:
        super().__init__(inner, attack, generator=generator, from_round=from_round)
        self._inner_group = inner
        self._has_lied = False

    def peer_selection(self, peers: Collection[str], *, round: int) -> list[str]:
        """Do as the honest strategy does."""
        return self._inner_group.peer_selection(peers, round=round)

    def take_inner_state(self, state: InnerState) -> None:
        """Do as the honest strategy does, where that wants any."""
        if isinstance(self._inner_group, TakesInnerState):
            self._inner_group.take_inner_state(state)

    def pack(self, theta_d: torch.Tensor, *, round: int) -> bytes:
        """Return the lie, which may be none that can be read."""
        if round < self._from_round:
            return self._inner_group.pack(theta_d, round=round)
        self._has_lied = True
        lie_d = self._lie(self._inner_group.told(theta_d), NOTHING_YET)
        self._inner_group.pack(theta_d, round=round)
        self._encoder.public_d = lie_d
        return self._inner_group.packed(lie_d, round=round)

    def snapshot(self) -> bytes:
        """Return the newest lie; the honest strategy's until there is one."""
        return super().snapshot() if self._has_lied else self._inner.snapshot()

    def snapshot_view(self) -> memoryview:
        """Return the same, without a copy of a lie."""
        return super().snapshot_view() if self._has_lied else memoryview(self.snapshot())

    @property
    def part_bytes(self) -> int:
        """As the honest strategy's."""
        return self._inner_group.part_bytes

    def reduce(self, packed: Mapping[str, bytes | memoryview], *, group: Sequence[str], part: slice) -> bytes:
        """Do as the honest strategy does."""
        return self._inner_group.reduce(packed, group=group, part=part)

    def finish(
        self, theta_d: torch.Tensor, group: Sequence[str], parts: Sequence[Reduced], *, round: int
    ) -> RoundResult:
        """Do as the honest strategy does."""
        return self._inner_group.finish(theta_d, group, parts, round=round)

    def finish_(
        self, theta_d: torch.Tensor, group: Sequence[str], parts: Sequence[Reduced], *, round: int
    ) -> RoundResult:
        """Do as the honest strategy does, with vectors of its own."""
        return self.finish(theta_d, group, parts, round=round)


class LyingSecureMember(Byzantine):
    """The same for secure sums: what it adds to its group's sum is the lie, cut to the clipping range as anything is.
    In the protocol it is honest."""

    def __init__(
        self,
        inner: SecureAverage,
        attack: VectorAttack | ModelAttack,
        *,
        generator: torch.Generator | None = None,
        from_round: int = 0,
    ) -> None:
        super().__init__(inner, attack, generator=generator, from_round=from_round)
        self._inner_sum = inner

    @property
    def draws_by_grant(self) -> bool:
        """As the honest strategy's."""
        return self._inner_sum.draws_by_grant

    def groups(
        self, peers: Collection[str], *, round: int, placements: Mapping[str, bytes] = NO_PLACEMENTS
    ) -> list[list[str]]:
        """Do as the honest strategy does."""
        return self._inner_sum.groups(peers, round=round, placements=placements)

    def width(self, members: int) -> int:
        """As the honest strategy's."""
        return self._inner_sum.width(members)

    @property
    def owners(self) -> int:
        """As the honest strategy's."""
        return self._inner_sum.owners

    @property
    def clipped_share(self) -> float:
        """As the honest strategy's."""
        return self._inner_sum.clipped_share

    def pack(self, theta_d: torch.Tensor, *, round: int, members: int) -> Words_d:
        """Return the lie as whole numbers; a model that is not finite is cut to the range."""
        words_v = self._inner_sum.pack(theta_d, round=round, members=members)
        if round < self._from_round:
            return words_v
        lie_d = torch.nan_to_num(self._lie(theta_d, NOTHING_YET))
        return self._inner_sum.encoded(lie_d, round=round, members=members)[0]

    def published(self, total: GroupSum) -> bytes:
        """Do as the honest strategy does."""
        return self._inner_sum.published(total)

    def published_size(self, members: int) -> int:
        """As the honest strategy's."""
        return self._inner_sum.published_size(members)

    def read(self, payload: bytes, members: Sequence[str]) -> GroupSum:
        """Do as the honest strategy does."""
        return self._inner_sum.read(payload, members)

    def finish_(self, theta_d: torch.Tensor, sums: Mapping[int, GroupSum], own: int, *, round: int) -> RoundResult:
        """Do as the honest strategy does."""
        return self._inner_sum.finish_(theta_d, sums, own, round=round)

    def snapshot(self) -> bytes:
        """Return the honest strategy's: an anchor that is not the others' would be seen."""
        return self._inner_sum.snapshot()

    def snapshot_view(self) -> memoryview:
        """Return the same, without a copy."""
        return self._inner_sum.snapshot_view()


def liar_of(
    inner: SyncStrategy,
    attack: VectorAttack | ModelAttack,
    *,
    generator: torch.Generator | None = None,
    from_round: int = 0,
) -> Byzantine:
    """Return a strategy that lies as its kind does, from `from_round` on. ValueError where it does not show its
    vectors."""
    if isinstance(inner, SecureAverage):
        return LyingSecureMember(inner, attack, generator=generator, from_round=from_round)
    if isinstance(inner, GroupAllReduce):
        return LyingMember(inner, attack, generator=generator, from_round=from_round)
    if isinstance(inner, AllReduceStrategy):
        raise ValueError(f"the strategy {inner.name!r} cannot be attacked: it does not show what it packs")
    return Byzantine(inner, attack, generator=generator, from_round=from_round)
