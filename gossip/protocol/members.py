"""Who our neighbours are: at most `degree`, taken in after a hello, let go when lost, banned or gone.

Keys are free, and a newcomer says of itself how lonely it is. So a full node gives places away slowly, never those of
the peers that its operator named (anchors) nor of the half that has been followed longest; an anchor always gets in.
"""

import random
from collections import OrderedDict
from typing import Final

from gossip.ids import PeerId
from gossip.protocol.neighbour import Neighbour
from gossip.protocol.outs import Disconnect, Follow, Outbox, Unfollow
from gossip.protocol.scoring import Scores

MAX_DEPARTED: Final = 64
DEPARTED_S: Final = 60.0
"""Peers that said goodbye are not dialled for a minute: a process that leaves is gone within seconds."""

SWAP_EVERY_S: Final = 30.0
"""A full node gives a place to a lonely newcomer at most so often: nobody can flush its neighbourhood quickly."""

IDLE_S: Final = 300.0
"""A neighbour from which nothing has been accepted for so long after it came, or that is lonely still, may have to go:
a snapshot of 1 GiB takes as long at 30 Mbit/s, and who has us alone for five minutes should try elsewhere too."""


class Members:
    """The table of neighbours."""

    def __init__(self, *, me: PeerId, degree: int, rng: random.Random, scores: Scores, outbox: Outbox) -> None:
        self.table: dict[PeerId, Neighbour] = {}
        self.leaving = False
        self.anchors: frozenset[PeerId] = frozenset()
        self._me = me
        self._degree = degree
        self._rng = rng
        self._scores = scores
        self._outbox = outbox
        self._departed: OrderedDict[PeerId, float] = OrderedDict()
        self._swapped_at = float("-inf")

    def has_room_for(self, peer: PeerId, now: float) -> bool:
        """Whether `peer` is a neighbour or may become one."""
        if peer in self.table:  # also while leaving: pulls under way may finish
            return True
        if self.leaving or self._scores.banned(peer, now):
            return False
        return len(self.table) < self._degree or (peer in self.anchors and not self.anchors.issuperset(self.table))

    @property
    def has_places(self) -> bool:
        """Whether there are fewer neighbours than there may be."""
        return not self.leaving and len(self.table) < self._degree

    def admit(self, peer: PeerId, its_neighbours: int, now: float) -> None:
        """Take `peer` in if there is room, if it is an anchor, or if it is lonely and one of ours can go."""
        if peer in self.table or self.leaving or self._scores.banned(peer, now):
            return
        if len(self.table) >= self._degree:
            self._make_room(peer, its_neighbours, now)
        if len(self.table) < self._degree:
            self.table[peer] = Neighbour(peer, now)
            self._departed.pop(peer, None)
            self._outbox.add(Follow(peer=peer))
            self._outbox.tell("neighbour_up", peer)

    def lose(self, peer: PeerId, why: str) -> None:
        """Forget a neighbour; nothing happens for a peer that is none."""
        if self.table.pop(peer, None) is not None:
            self._outbox.add(Unfollow(peer=peer))
            self._outbox.tell("neighbour_lost", peer, detail=why)

    def depart(self, peer: PeerId, now: float) -> None:
        """A peer said goodbye."""
        self._departed[peer] = now + DEPARTED_S
        while len(self._departed) > MAX_DEPARTED:
            self._departed.popitem(last=False)
        self.lose(peer, "it left")

    def dialable(self, peer: PeerId, now: float) -> bool:
        """Whether we want a connection to this peer at all."""
        if peer == self._me or self.leaving or self._scores.banned(peer, now):
            return False
        return self._departed.get(peer, now) <= now

    def _make_room(self, peer: PeerId, its_neighbours: int, now: float) -> None:
        """Without this, a clique of full nodes would shut out whoever comes next."""
        if peer in self.anchors:
            others = [each for each in self.table if each not in self.anchors]
            if others:
                self._replace(
                    next(iter(self._idle(others, now)), others[-1]), "its place goes to a peer of the operator's"
                )
        elif its_neighbours <= self._degree // 4 and now >= self._swapped_at + SWAP_EVERY_S:
            kept = self._kept()
            others = [each for each in self.table if each not in kept]
            rich = [each for each in others if self.table[each].neighbours > self._degree // 2]
            if candidates := self._idle(others, now) or rich:
                self._swapped_at = now
                self._replace(self._rng.choice(candidates), "its place goes to a lonely newcomer")

    def _kept(self) -> frozenset[PeerId]:
        """Anchors, and the half of the places that has been followed longest."""
        followed = [peer for peer, it in self.table.items() if it.tracked]  # in the order in which they came
        return self.anchors.union(followed[: self._degree // 2])

    def _idle(self, peers: list[PeerId], now: float) -> list[PeerId]:
        table, lonely = self.table, self._degree // 4
        old = [peer for peer in peers if now >= table[peer].since + IDLE_S]
        return [peer for peer in old if not table[peer].tracked or table[peer].neighbours <= lonely]

    def _replace(self, peer: PeerId, why: str) -> None:
        self.lose(peer, why)
        self._outbox.add(Disconnect(peer=peer))
