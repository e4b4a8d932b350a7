"""Who our neighbours are: at most `degree`, taken in after a hello, let go when lost, banned or gone.

Keys are free, and a newcomer says of itself how lonely it is. So a full node gives places away slowly, never those of
the peers that its operator named (anchors) nor of the half that has been followed longest; an anchor always gets in.
Whom the rings put beside us (topology.py) gets in as well, at the cost of the newest of those that are not beside us.
The rings have fewer places than there are: whatever ids a crowd has ground for itself, the oldest of the others stay.
"""

import random
from collections import OrderedDict, deque
from collections.abc import Iterable
from typing import Final

from gossip.ids import PeerId
from gossip.protocol.attempts import Attempts
from gossip.protocol.envelope import Scope
from gossip.protocol.neighbour import Neighbour
from gossip.protocol.outs import Disconnect, Follow, Outbox, Unfollow
from gossip.protocol.quota import Quota
from gossip.protocol.roles import Roles
from gossip.protocol.scoring import Scores
from gossip.protocol.topology import Rings

MAX_DEPARTED: Final = 64
DEPARTED_S: Final = 60.0
"""Peers that said goodbye are not dialled for a minute: a process that leaves is gone within seconds."""

SWAP_EVERY_S: Final = 30.0
"""A full node gives a place to a lonely newcomer at most so often: nobody can flush its neighbourhood quickly."""

ABSENT_MIN_S: Final = 30.0
ABSENT_MAX_S: Final = 3600.0
"""Whoever is gone, or does not answer, has no place on the rings for so long, doubling: the first is what two rounds of
a home link take, the longest what a told address is left alone for (dialler.py)."""

HELD_S: Final = 20.0
"""A place on the rings that falls free waits so long for whom the rings put there next, before anybody may have it: a
few dials' time. Who takes it meanwhile would have to go again, at the price of a snapshot each way."""

IDLE_S: Final = 300.0
"""A neighbour from which nothing has been accepted for so long after it came, or that is lonely still, may have to go:
a snapshot of 1 GiB takes as long at 30 Mbit/s, and who has us alone for five minutes should try elsewhere too."""


class Members:
    """The table of neighbours."""

    def __init__(
        self,
        *,
        me: PeerId,
        scope: Scope,
        degree: int,
        rng: random.Random,
        scores: Scores,
        outbox: Outbox,
        roles: Roles | None = None,
    ) -> None:
        self.table: dict[PeerId, Neighbour] = {}
        self.leaving = False
        self.anchors: frozenset[PeerId] = frozenset()
        self._me = me
        self._degree = degree
        self._rng = rng
        self._scores = scores
        self._outbox = outbox
        self._roles = roles or Roles(me)
        self._departed: OrderedDict[PeerId, float] = OrderedDict()
        self._swapped_at = float("-inf")
        self.rings = Rings(me, scope, degree)
        self._rewired = Quota(burst=max(1, degree - self.rings.free_places), per_s=1 / SWAP_EVERY_S)
        self._freed: deque[float] = deque(maxlen=degree)
        self._absent = Attempts(least=ABSENT_MIN_S, most=ABSENT_MAX_S, rng=rng)

    def has_room_for(self, peer: PeerId, now: float) -> bool:
        """Whether `peer` is a neighbour or may become one."""
        if peer in self.table:  # also while leaving: pulls under way may finish
            return True
        if self.leaving or self._scores.banned(peer, now) or self._roles.listens(peer):
            return False
        wanted = self.rings.wants(peer)
        return (
            len(self.table) + (0 if wanted or peer in self.anchors else self._held(now)) < self._degree
            or (peer in self.anchors and not self.anchors.issuperset(self.table))
            or (wanted and self._rewired.has("", now) and self._beyond_the_rings() != [])
        )

    @property
    def has_places(self) -> bool:
        """Whether there are fewer neighbours than we look for. Beyond a full mesh the last free places stay open, so
        that who comes finds one."""
        spare = self.rings.free_places // 2 if self.rings.wanted else 0
        return not self.leaving and len(self.table) < self._degree - spare

    def look_round(self, heard_of: Iterable[PeerId], now: float) -> None:
        """Draw the rings anew, of our neighbours and of those in `heard_of` that are not known to be gone."""
        self.rings.see({*self.table, *(peer for peer in heard_of if self.is_there(peer, now))})

    def is_there(self, peer: PeerId, now: float) -> bool:
        """Whether nothing speaks against it that a peer which we have heard of is in the swarm."""
        return self.dialable(peer, now) and self._absent.due(peer, now)

    def present(self, peer: PeerId) -> None:
        """A sign of life: it has its places on the rings again."""
        self._absent.succeeded(peer)

    def absent(self, peer: PeerId, now: float) -> None:
        """It does not answer: others take its places on the rings, for a while."""
        self._absent.failed(peer, now)

    def admit(self, peer: PeerId, its_neighbours: int, now: float) -> None:
        """Take `peer` in if there is room, if it is an anchor, or if it is lonely and one of ours can go."""
        if peer in self.table or self.leaving or self._scores.banned(peer, now) or not self._roles.trains(peer):
            return
        if self.rings.wants(peer):
            self.rings.add(peer)  # or a crowd, each nearer than the one before, would hold more places than rings have
        held = 0 if self.rings.wants(peer) or peer in self.anchors else self._held(now)
        if len(self.table) + held >= self._degree:
            self._make_room(peer, its_neighbours, now)
        if len(self.table) + held < self._degree:
            self.table[peer] = Neighbour(peer, now)
            self._departed.pop(peer, None)
            self.present(peer)
            self._outbox.add(Follow(peer=peer))
            self._outbox.tell("neighbour_up", peer)

    def lose(self, peer: PeerId, why: str) -> None:
        """Forget a neighbour; nothing happens for a peer that is none."""
        if self.table.pop(peer, None) is not None:
            self._outbox.add(Unfollow(peer=peer))
            self._outbox.tell("neighbour_lost", peer, detail=why)

    def drop(self, peer: PeerId, why: str) -> None:
        """Forget a neighbour, and close all connections to a peer, neighbour or not."""
        self.lose(peer, why)
        self._outbox.add(Disconnect(peer=peer))

    def vanish(self, peer: PeerId, why: str, now: float) -> None:
        """A neighbour is gone without a word."""
        if peer in self.table:
            self.absent(peer, now)
            self._free(peer, now)
            self.lose(peer, why)

    def depart(self, peer: PeerId, now: float) -> None:
        """A peer said goodbye."""
        self._departed[peer] = now + DEPARTED_S
        while len(self._departed) > MAX_DEPARTED:
            self._departed.popitem(last=False)
        self._free(peer, now)
        self.lose(peer, "it left")

    def dialable(self, peer: PeerId, now: float) -> bool:
        """Whether we want a connection to this peer at all."""
        if peer == self._me or self.leaving or self._scores.banned(peer, now):
            return False
        return self._departed.get(peer, now) <= now and self._roles.wanted(peer)

    def _make_room(self, peer: PeerId, its_neighbours: int, now: float) -> None:
        """Without this, a clique of full nodes would shut out whoever comes next."""
        if peer in self.anchors:
            others = [each for each in self.table if each not in self.anchors]
            if others:
                self.drop(next(iter(self._idle(others, now)), others[-1]), "its place goes to a peer of the operator's")
        elif self.rings.wants(peer) and (others := self._beyond_the_rings()):
            if self._rewired.take("", now):
                self.drop(others[-1], "its place goes to one that the rings put beside us")
        elif its_neighbours <= self._degree // 4 and now >= self._swapped_at + SWAP_EVERY_S:
            kept = self._kept()
            free = [each for each in self.table if each not in kept]
            others = [each for each in free if each not in self.rings.wanted] or free
            rich = [each for each in others if self.table[each].neighbours > self._degree // 2]
            if candidates := self._idle(others, now) or rich:
                self._swapped_at = now
                self.drop(self._rng.choice(candidates), "its place goes to a lonely newcomer")

    def _kept(self) -> frozenset[PeerId]:
        """Anchors, and the half of the places that has been followed longest."""
        followed = [peer for peer, it in self.table.items() if it.tracked]  # in the order in which they came
        return self.anchors.union(followed[: self._degree // 2])

    def _free(self, peer: PeerId, now: float) -> None:
        if peer in self.table and peer in self.rings.wanted:
            self._freed.append(now + HELD_S)

    def _held(self, now: float) -> int:
        """How many places wait for those whom the rings put there."""
        return min(sum(until > now for until in self._freed), len(self.rings.wanted.difference(self.table)))

    def _beyond_the_rings(self) -> list[PeerId]:
        """Neighbours that may have to go for one of the rings', the newest last: neither beside us on any, nor the
        operator's."""
        return [each for each in self.table if each not in self.anchors and not self.rings.wants(each)]

    def _idle(self, peers: list[PeerId], now: float) -> list[PeerId]:
        table, lonely = self.table, self._degree // 4
        old = [peer for peer in peers if now >= table[peer].since + IDLE_S]
        return [peer for peer in old if not table[peer].tracked or table[peer].neighbours <= lonely]
