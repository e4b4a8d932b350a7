"""One peer's hash chain as we have verified it: our position in it, and what a further link means.

A chain is (epoch, seq): an epoch begins with a base (seq 0), each later link names its predecessor's digest. What we
have *applied* is one place in it. A link may be the next step, something we have, something too old, something beyond a
gap, or the proof of a lie. A lie is two statements by one key that cannot both hold: two links at one place, a link
whose predecessor is not the one that the same key signed before, or a snapshot that differs from the state that the
link at its place names.
"""

from collections import OrderedDict
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from gossip.core.errors import Reason, RemoteError
from gossip.core.ids import Digest
from gossip.core.limits import MAX_LINKS
from gossip.core.statements import SnapshotOffer, UpdateHeader

RECENT_LINKS: Final = 4 * MAX_LINKS
"""Links of a peer kept for comparison: four times what it holds itself, 256 KiB per neighbour at most."""

MAX_PENDING: Final = 2 * MAX_LINKS
"""Links waiting for the ones before them; a gap longer than MAX_LINKS is closed by a snapshot anyway."""


class Verdict(StrEnum):
    """How a validly signed link relates to what we have."""

    NEWS = "news"
    DUPLICATE = "duplicate"
    LATE = "late"
    REPLAYED = "replayed"


@dataclass(frozen=True, kw_only=True)
class ChainPosition:
    """A link that we have applied: its digest stands for all before it. `raw`: the signed envelope as evidence."""

    epoch: int
    seq: int
    digest: Digest
    round: int
    raw: bytes

    @property
    def place(self) -> tuple[int, int]:
        """(epoch, seq)."""
        return self.epoch, self.seq


class EquivocationError(RemoteError):
    """A peer signed two statements that cannot both hold; `proof` convinces anyone who knows the protocol."""

    def __init__(self, first: bytes, second: bytes) -> None:
        super().__init__(Reason.EQUIVOCATION, "signed two histories")
        self.proof = (first, second)


class HashChain:
    """What one peer has signed (`announced`, pending links) and how far we have applied it (`applied`)."""

    def __init__(self) -> None:
        self.applied: ChainPosition | None = None
        self.announced: UpdateHeader | None = None
        self._recent: OrderedDict[tuple[int, int], UpdateHeader] = OrderedDict()
        self._pending: dict[int, UpdateHeader] = {}

    def learn(self, link: UpdateHeader) -> Verdict:
        """Process a link by this peer. Raises EquivocationError when it contradicts what the peer signed before."""
        known = self._recent.get(link.place)
        if known is not None:
            if known.digest != link.digest:
                raise EquivocationError(known.raw, link.raw)
            self._await(link)  # it may have fallen out of the pending ones
            return Verdict.DUPLICATE
        self._check_against_applied(link)
        verdict = self._age_of(link)
        if verdict is not Verdict.REPLAYED:
            self._remember(link)
        if verdict is Verdict.NEWS:
            self._await(link)
        return verdict

    @property
    def newest(self) -> tuple[int, int] | None:
        """The newest (epoch, seq) that the peer is known to have signed."""
        places = [held.place for held in (self.announced, self.applied) if held is not None]
        return max(places, default=None)

    def next_link(self) -> UpdateHeader | None:
        """The link after the applied one, when we have it. Raises EquivocationError when it does not fit."""
        expected = self.expected_seq
        link = None if expected is None else self._pending.get(expected)
        if link is not None:
            self._check_against_applied(link)
        return link

    @property
    def expected_seq(self) -> int | None:
        """The seq to apply next in the announced epoch; None when there is nothing to apply."""
        if self.announced is None:
            return None
        if self.applied is None:
            return 0
        if self.applied.place >= self.announced.place:
            return None
        return self.applied.seq + 1 if self.applied.epoch == self.announced.epoch else 0

    @property
    def gap(self) -> int:
        """How many links are missing before the first one that we hold after the expected link."""
        expected = self.expected_seq
        return 0 if expected is None else min(self._pending, default=expected) - expected

    def apply(self, place: ChainPosition) -> None:
        """Note that the runtime has applied the update at `place`."""
        self.applied = place
        announced = self.announced
        if announced is not None and place.epoch == announced.epoch:
            self._pending = {seq: link for seq, link in self._pending.items() if seq > place.seq}

    def forget_applied(self) -> None:
        """Note that the runtime no longer tracks this peer: only a base or a snapshot can begin anew."""
        self.applied = None

    def check_offer(self, offer: SnapshotOffer) -> None:
        """Raise RemoteError unless a snapshot fits what the peer signed before."""
        known = self._recent.get(offer.place)
        if known is not None and known.digest != offer.head:
            raise EquivocationError(known.raw, offer.raw)
        if known is not None and known.body.state not in (None, offer.address):
            raise EquivocationError(known.raw, offer.raw)
        if self.newest is not None and offer.epoch < self.newest[0]:
            raise RemoteError(Reason.REPLAYED, "a snapshot of an earlier incarnation")
        if self.applied is not None and offer.place < self.applied.place:
            raise RemoteError(Reason.STALE, "a snapshot older than what we have")

    def _check_against_applied(self, link: UpdateHeader) -> None:
        applied = self.applied
        if applied is None or applied.epoch != link.epoch:
            return
        same = link.seq == applied.seq and link.digest != applied.digest
        successor = link.seq == applied.seq + 1 and link.prev != applied.digest
        if same or successor:
            raise EquivocationError(applied.raw, link.raw)
        if link.seq == applied.seq + 1 and link.body.round > applied.round + 1:
            # Each link is a round's work: a claim of many rounds costs as many updates, or a new epoch.
            raise RemoteError(Reason.PROTOCOL, f"round {link.body.round} straight after round {applied.round}")

    def _age_of(self, link: UpdateHeader) -> Verdict:
        newest = self.newest
        if newest is None or link.place > newest:
            return Verdict.NEWS
        if link.epoch < newest[0] or newest[1] - link.seq > MAX_LINKS:
            return Verdict.REPLAYED
        expected = self.expected_seq
        return Verdict.LATE if expected is None or link.seq < expected else Verdict.NEWS

    def _remember(self, link: UpdateHeader) -> None:
        self._recent[link.place] = link
        while len(self._recent) > RECENT_LINKS:
            self._recent.popitem(last=False)

    def _await(self, link: UpdateHeader) -> None:
        if self.announced is None or link.place > self.announced.place:
            if self.announced is not None and link.epoch > self.announced.epoch:
                self._pending.clear()
            self.announced = link
        expected = self.expected_seq
        if link.epoch == self.announced.epoch and expected is not None and link.seq >= expected:
            self._pending[link.seq] = link
        while len(self._pending) > MAX_PENDING:
            del self._pending[min(self._pending)]
