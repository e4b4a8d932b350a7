"""Which neighbours count in full, and which are on probation: keys are free, so new ones count little at first.

A neighbour has served a round when something new of it was accepted between two closings of ours. After `rounds` served
rounds it is established. Neighbours that were there when our own first round closed are established from the start:
nobody is older there, and otherwise a swarm that starts together would average nothing. It is not so after a restart of
which it is known who had served before: new keys may wait for it. Everybody else is on probation, and all on probation
together get as many seats as there may be liars. So a crowd of new keys counts for no more than the liars that the
aggregator tolerates, until each of them has done the work of `rounds` rounds at our pace.

Served rounds are kept when a neighbour is lost, so that a broken connection costs nobody its rank.
"""

from collections import OrderedDict
from collections.abc import Collection, Iterable
from typing import Final

from gossip.core.ids import PeerId

MAX_REMEMBERED: Final = 256
"""Peers whose served rounds are remembered: 32 times the default degree, as records and counters are. Chosen."""


class Probation:
    """Served rounds by peer. `rounds`: how many end a probation. `seats`: of all on probation together."""

    def __init__(self, *, rounds: int, seats: int) -> None:
        self.begun = False
        """Whether a round of ours has closed. Until then we know nobody, and all neighbours count alike."""
        self._rounds = rounds
        self._seats = seats
        self._served: OrderedDict[PeerId, int] = OrderedDict()
        self._contributed: OrderedDict[PeerId, None] = OrderedDict()
        self._company: frozenset[PeerId] = frozenset()
        """Peers that were neighbours when our first round closed."""
        self._knows_some = False
        """Whether it is known who had served before this process began."""

    def __len__(self) -> int:
        return len(self._served)

    def contributed(self, peer: PeerId) -> None:
        """Note that something new of a neighbour was accepted."""
        self._contributed[peer] = None
        self._contributed.move_to_end(peer)
        while len(self._contributed) > MAX_REMEMBERED:
            self._contributed.popitem(last=False)

    def round_closed(self, here: Collection[PeerId]) -> None:
        """Note that a round of ours closed with these neighbours."""
        for peer in self._contributed.keys() & set(here):
            self._served[peer] = min(self._rounds, self.served(peer) + 1)
            self._served.move_to_end(peer)
        self._forget(besides=set(here))
        self._contributed.clear()
        if not self.begun:
            self.begun = True
            self._company = frozenset(here)

    def vouch(self, peers: Iterable[PeerId]) -> None:
        """Count these as having served in full, as they had before this process began."""
        for peer in peers:
            self._knows_some = True
            self._served[peer] = self._rounds
        self._forget(besides=set())

    def served(self, peer: PeerId) -> int:
        """Return the rounds that a peer has served, at most as many as end a probation."""
        return self._served.get(peer, 0)

    def has_served(self, peer: PeerId) -> bool:
        """Return whether a peer has served as many rounds as end a probation."""
        return self.served(peer) >= self._rounds

    def established(self, peer: PeerId) -> bool:
        """Return whether a peer counts in full."""
        is_oldest = peer in self._company and not self._knows_some
        return not self.begun or self._seats == 0 or is_oldest or self.has_served(peer)

    def is_no_newcomer(self, peer: PeerId) -> bool:
        """Return whether a peer counts in full, and not since no round of ours has closed in this process alone."""
        return self.established(peer) and (not self._knows_some or self._seats == 0 or self.has_served(peer))

    def seated(self, peers: Iterable[PeerId]) -> list[PeerId]:
        """Return, of these peers, the established ones, and of the others those that have served longest, as many as
        there are seats. Equals come in the order given."""
        peers = list(peers)
        waiting = [peer for peer in peers if not self.established(peer)]
        if len(waiting) <= self._seats:
            return peers
        waiting.sort(key=self.served, reverse=True)
        without = set(waiting[self._seats :])
        return [peer for peer in peers if peer not in without]

    def _forget(self, besides: Collection[PeerId]) -> None:
        """Forget who has served least, and of these the longest untouched: none that is here, or where all others have
        served in full, nobody who comes now would ever count in full."""
        while len(self._served) > MAX_REMEMBERED:
            gone = (peer for peer in self._served if peer not in besides)
            # A crowd that comes and goes replaces its own entries, and none that has served longer.
            del self._served[min(gone, key=self.served, default=next(iter(self._served)))]
