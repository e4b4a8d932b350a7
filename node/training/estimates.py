"""Whose estimates the strategy holds: the neighbours', and a few of peers that have left. Pure bookkeeping.

An estimate is a whole model, and a peer that comes, has one tracked and leaves costs nothing but a key. So the number
held is bounded by one that is known at the start, whoever comes in turn: what a new one would exceed it by is forgotten
before it is tracked. In bytes: (degree + MAX_DEPARTED) * 4 * d for a model of d parameters.

Who left after a round was closed still counts in it, for at the end of a run all leave within one round's time. Those
are forgotten last, and of them the one that was tracked for the shortest time first: keys that come in turn are always
younger than the neighbours that a round was closed with.
"""

from collections.abc import Callable, Collection
from typing import Final

MAX_DEPARTED: Final = 2
"""Estimates held beyond the network's degree. At the end of a run nobody comes any more, and all `degree` of those who
leave are held anyway; this many may be replaced by newcomers while a round is closed. Chosen: an honest swarm seldom
loses one neighbour in the few milliseconds between the end of a round and its aggregation."""

Names = Callable[[], Collection[str]]


class HeldEstimates:
    """The peers with an estimate, in the order in which they were tracked; `most` at a time.

    `here`: the neighbours now. `counted`: who counts although it has left. Both are asked whenever that matters.
    """

    def __init__(self, *, most: int, here: Names, counted: Names) -> None:
        self.counted = counted
        self._most = most
        self._here = here
        self._held: dict[str, None] = {}

    def __contains__(self, peer: str) -> bool:
        return peer in self._held

    def __len__(self) -> int:
        return len(self._held)

    def wants(self, peer: str) -> bool:
        """Whether an update of `peer` is of any use: it is a neighbour, or has left and counts, and is held."""
        return peer in self._here() or (peer in self._held and peer in self.counted())

    def make_room(self, peer: str) -> list[str]:
        """Whom to forget before `peer`, a neighbour, is tracked: only peers that have left. It counts as held then."""
        gone: list[str] = []
        if peer not in self._held:
            last = self._departed()
            gone = [last.pop() for _ in range(len(self._held) + 1 - self._most)]
        for each in gone:
            del self._held[each]
        self._held[peer] = None
        return gone

    def forget_departed(self, besides: Collection[str]) -> list[str]:
        """Whom to forget at the end of a round: all that have left, but for those named."""
        here = self._here()
        gone = [peer for peer in self._held if peer not in here and peer not in besides]
        for peer in gone:
            del self._held[peer]
        return gone

    def forget_all_but(self, kept: Collection[str]) -> list[str]:
        """Whom to forget so that only those named are held."""
        gone = [peer for peer in self._held if peer not in kept]
        for peer in gone:
            del self._held[peer]
        return gone

    def _departed(self) -> list[str]:
        """Who has left, the first to be forgotten last: who counts is kept longest, and the longest held of those."""
        here, counted = self._here(), self.counted()
        departed = [peer for peer in self._held if peer not in here]
        return sorted(departed, key=lambda peer: peer not in counted)
