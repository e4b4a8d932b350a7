"""One neighbour: its chain, and what to fetch from it next.

`next_work` is the whole policy of catching up. A link that we hold is followed by pulling its payload; a short gap is
closed by asking for the missing links. A long gap, links no longer held, or an estimate that the runtime refused are
closed by a snapshot. After a failure we wait, each time twice as long; it never changes what is right to do next.
"""

from dataclasses import dataclass
from typing import Final

from gossip.core.api import NeighbourStatus
from gossip.core.digests import NO_DIGEST
from gossip.core.errors import Reason
from gossip.core.ids import Digest, PeerId
from gossip.core.limits import MARK_EVERY, MAX_LINKS
from gossip.core.statements import SnapshotOffer, UpdateHeader
from gossip.discovery.told_records import ToldRecords
from gossip.updates.hash_chain import ChainPosition, HashChain

RETRY_MIN_S: Final = 0.5
RETRY_MAX_S: Final = 10.0
"""Seconds of pause after a failed fetch, doubling: half a round trip at first, a heartbeat at most."""

LINKS_FROM_BASE: Final = 4
"""A newcomer replays a chain from its base while that is at most 4 links; four 8-bit deltas weigh one snapshot."""

STATES_KEPT: Final = 4
"""Marks of a neighbour that are remembered: of 16 links, twice what it holds itself."""


@dataclass(frozen=True, kw_only=True)
class FetchPayload:
    """Pull this link's payload (if it has one) and pass the update on."""

    link: UpdateHeader


@dataclass(frozen=True, kw_only=True)
class FetchHeaders:
    """Ask for `count` links of `epoch` from `first` on."""

    epoch: int
    first: int
    count: int


@dataclass(frozen=True, kw_only=True)
class FetchSnapshot:
    """Ask for a snapshot at (epoch, seq) or later."""

    epoch: int
    seq: int


Work = FetchPayload | FetchHeaders | FetchSnapshot


class Neighbour:
    """What we know of one neighbour, and what we have yet to get from it."""

    def __init__(self, peer: PeerId, now: float) -> None:
        self.peer = peer
        self.chain = HashChain()
        self.since = now
        self.heard_at = now
        self.neighbours = 0
        self.delivered: Digest | None = None
        self.told = ToldRecords()
        self.retry_at = now
        self._failures = 0
        self._links_gone = False
        self._must_restart_at: tuple[int, int] | None = None
        self._states: dict[tuple[int, int], Digest | None] = {}

    @property
    def tracked(self) -> bool:
        """Whether the runtime follows this neighbour's estimate."""
        return self.chain.applied is not None

    @property
    def applied_round(self) -> int | None:
        """The newest round whose work is in what the runtime accepted of this neighbour; None: nothing yet.

        The base of a chain is the model with which its author enters a round. It has the work of the one before: -1 at
        the start of a run."""
        applied = self.chain.applied
        if applied is None:
            return None
        return applied.round - 1 if applied.seq == 0 else applied.round

    @property
    def announced_round(self) -> int | None:
        """The round that the neighbour has reached, by the newest link that it has signed."""
        newest = self.chain.announced.body if self.chain.announced else self.chain.applied
        return newest.round if newest else None

    @property
    def promised_round(self) -> int | None:
        """The newest round whose work the neighbour has signed, here or on the way; counted as `applied_round`.

        A snapshot may be of a later round than the newest link that is known."""
        newest, applied = self.chain.announced, self.applied_round
        if newest is None:
            return applied
        announced = newest.body.round - 1 if newest.seq == 0 else newest.body.round
        return announced if applied is None else max(announced, applied)

    def status(self, *, ours: int, theirs: int | None, score: float, address: str) -> NeighbourStatus:
        """Return what people see; `ours`: our round, against which the staleness of `theirs` is counted."""
        return NeighbourStatus(
            round=self.announced_round or 0,
            staleness=max(0, ours - (theirs or 0)),
            score=score,
            gives=self.announced_round is not None,
            tracked=self.tracked,
            address=address,
            neighbours=self.neighbours,
        )

    def next_work(self, now: float) -> Work | None:
        """What to fetch now; None when there is nothing, or not before `retry_at`. Raises EquivocationError."""
        expected, announced = self.chain.expected_seq, self.chain.announced
        if expected is None or announced is None or now < self.retry_at:
            return None
        if self._wants_snapshot(announced):
            at = self._must_restart_at or (announced.epoch, max(0, announced.seq - MAX_LINKS))
            return FetchSnapshot(epoch=at[0], seq=at[1])
        link = self.chain.next_link()
        if link is not None:
            return FetchPayload(link=link)
        if self.chain.gap > MAX_LINKS or self._links_gone:
            return FetchSnapshot(epoch=announced.epoch, seq=expected)
        return FetchHeaders(epoch=announced.epoch, first=expected, count=min(self.chain.gap, MAX_LINKS))

    def next_model(self, now: float, *, behind: int) -> Work | None:
        """Return what to fetch for a runtime that wants the neighbour's model, at most `behind` links old, and not its
        updates."""
        announced, applied = self.chain.announced, self.chain.applied
        if announced is None or now < self.retry_at:
            return None
        least = announced.epoch, max(0, announced.seq - behind)
        if self._must_restart_at is not None:
            least = max(least, self._must_restart_at)
        elif announced.seq == 0 and applied is None:
            return FetchPayload(link=announced)  # a base is a model
        if applied is not None and applied.place >= least:
            return None
        return FetchSnapshot(epoch=least[0], seq=least[1])

    def begin_anew(self, now: float) -> None:
        """Note that the runtime holds nothing of this neighbour any more, and that it may be asked at once."""
        self.chain.forget_applied()
        self.retry_at = now

    def links_arrived(self, now: float) -> None:
        """Note that an answer's links were processed. If the expected link was not among them, only a snapshot
        helps."""
        self._links_gone = self.chain.next_link() is None
        if self._links_gone:
            self.retry_at = now

    def payload_gone(self) -> None:
        """Note that the neighbour no longer holds a payload that we need."""
        self._links_gone = True
        announced = self.chain.announced
        assert announced is not None
        self._must_restart_at = (announced.epoch, self.chain.expected_seq or 0)

    def failed(self, now: float) -> None:
        """Note a failed fetch: wait, longer each time."""
        self.retry_at = now + min(RETRY_MAX_S, RETRY_MIN_S * 2.0 ** min(self._failures, 10))
        self._failures += 1

    def accepted(self, what: UpdateHeader | SnapshotOffer) -> None:
        """Note that the runtime has applied this update."""
        self.chain.apply(place_of(what))
        self._failures = 0
        self._links_gone = False
        self._must_restart_at = None

    def rejected(self, what: UpdateHeader | SnapshotOffer, reason: Reason, now: float) -> None:
        """Note a refusal by the runtime: the estimate is untracked until a base or snapshot beyond that position."""
        self.chain.forget_applied()
        self._must_restart_at = (what.epoch, what.seq + 1)
        self.failed(now)

    def marked(self, place: tuple[int, int], state: Digest | None) -> None:
        """Note that our copy of its estimate after its marked link at `place` has the address `state`; None: not
        computed."""
        self._states.pop(place, None)
        self._states[place] = state
        while len(self._states) > STATES_KEPT:
            del self._states[next(iter(self._states))]

    def witness(self, epoch: int, seq: int, least: int) -> Digest | None:
        """Return the address that its snapshot at (epoch, seq) must have, for an asker that wanted it from `least` on.
        NO_DIGEST where it should have offered an earlier state that it named and we found true; None where we cannot
        tell."""
        if (epoch, seq) in self._states:
            return self._states[epoch, seq]
        applied = self.chain.applied
        if applied is None or applied.epoch != epoch or applied.seq < seq:
            return None
        due = range(max(least, seq - MARK_EVERY), seq)
        true = (place for place, state in self._states.items() if state is not None)
        return NO_DIGEST if any(at == epoch and number in due for at, number in true) else None

    def _wants_snapshot(self, announced: UpdateHeader) -> bool:
        """Whether a snapshot is wanted: after a refusal, and for a latecomer. A new epoch's base begins anew by
        itself."""
        restart = self._must_restart_at
        if restart is not None:
            return announced.epoch <= restart[0] or announced.seq > LINKS_FROM_BASE
        behind = self.chain.applied is None or self.chain.applied.epoch != announced.epoch
        return behind and announced.seq > LINKS_FROM_BASE


def place_of(what: UpdateHeader | SnapshotOffer) -> ChainPosition:
    """Return the position in the chain once `what` is applied."""
    if isinstance(what, UpdateHeader):
        return ChainPosition(epoch=what.epoch, seq=what.seq, digest=what.digest, round=what.body.round, raw=what.raw)
    return ChainPosition(epoch=what.epoch, seq=what.seq, digest=what.head, round=what.round, raw=what.raw)
