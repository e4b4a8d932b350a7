"""Which peers' estimates the strategy holds: the neighbours', and a few of departed peers. Pure bookkeeping.

An estimate is a whole model. An attacker that joins, is tracked and leaves again pays no more than a key for it. So the
number held has a bound that is known at the start: before a new peer is tracked, departed ones are forgotten. In
bytes, of memory or of the disk (`node.estimates_on`), it is (degree + MAX_DEPARTED) * 4 * d for a model of d
parameters, and half of that in bf16.

A peer that left after a round was closed still counts in it, for at the end of a run all leave within one round's time.
Those peers are forgotten last, the most recently tracked first: keys that come in turn are always younger than the
neighbours with which a round was closed.
"""

from collections.abc import Callable, Collection
from typing import Final

MAX_DEPARTED: Final = 2
"""Estimates held beyond the network's degree. At the end of a run no peer arrives any more, and all `degree` departed
ones are held anyway. While a round is closed, newcomers may replace this many departed neighbours. Chosen: an honest
swarm seldom loses one neighbour in the few milliseconds between the end of a round and its aggregation."""

Names = Callable[[], Collection[str]]


class HeldEstimates:
    """The peers with an estimate, in the order in which they were tracked; `most` at a time.

    `here` returns the neighbours now; `counted` the peers that count although they have left. Both are called when
    needed.
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
        """Return whether an update of `peer` is useful: it is a neighbour, or it has left, still counts and is held."""
        return peer in self._here() or (peer in self._held and peer in self.counted())

    def make_room(self, peer: str) -> list[str]:
        """Return the departed peers to forget before the neighbour `peer` is tracked; `peer` then counts as held."""
        gone: list[str] = []
        if peer not in self._held:
            last = self._departed()
            gone = [last.pop() for _ in range(len(self._held) + 1 - self._most)]
        for each in gone:
            del self._held[each]
        self._held[peer] = None
        return gone

    def forget_departed(self, besides: Collection[str]) -> list[str]:
        """Return whom to forget at the end of a round: all departed peers except `besides`."""
        here = self._here()
        gone = [peer for peer in self._held if peer not in here and peer not in besides]
        for peer in gone:
            del self._held[peer]
        return gone

    def forget_all_but(self, kept: Collection[str]) -> list[str]:
        """Return whom to forget so that only `kept` are held."""
        gone = [peer for peer in self._held if peer not in kept]
        for peer in gone:
            del self._held[peer]
        return gone

    def _departed(self) -> list[str]:
        """Return the departed peers, the first to forget last. Peers that count are kept longest, the longest held
        above all."""
        here, counted = self._here(), self.counted()
        departed = [peer for peer in self._held if peer not in here]
        return sorted(departed, key=lambda peer: peer not in counted)
