"""Who our neighbours are: at most `degree`, admitted after a hello, dropped when lost, banned or gone.

mesh_admission.py decides who is admitted, and who has to go for it. This file holds what it decides by: the table, the
rings that are drawn from verified members (discovery/topology.py), and how many of each network are known.
"""

import random
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from gossip.actions import ActionQueue, Disconnect, Follow, Unfollow
from gossip.core.backoff import Backoff
from gossip.core.envelope import Scope
from gossip.core.ids import PeerId
from gossip.core.networks import bounded, group_of, largest_share, share_of
from gossip.core.rate_limit import KeyedTokenBucket
from gossip.discovery.peerstore import RecordTrust
from gossip.discovery.topology import Rings
from gossip.updates.mesh_admission import Newcomer, Occupancy, Occupant
from gossip.updates.neighbour import Neighbour
from gossip.updates.roles import Roles
from gossip.updates.score_table import ScoreTable

MAX_DEPARTED: Final = 64
DEPARTED_S: Final = 60.0
"""Peers that said goodbye are not dialled for a minute: a process that leaves has ended within seconds."""

SWAP_EVERY_S: Final = 30.0
"""A full node gives a place to a lonely newcomer at most once in this time: nobody can replace its neighbours
quickly."""

ABSENT_MIN_S: Final = 30.0
ABSENT_MAX_S: Final = 3600.0
"""A peer that is gone, or does not answer, has no place on the rings for a time that doubles up to this. The first
pause is what two rounds of a home link take; the longest is as long as a reported address is not dialled
(discovery/dialler_task.py)."""

HELD_S: Final = 20.0
"""A place on the rings that falls free waits so long for the peer that the rings put there next, before anybody may
have it: a few dials' time. A peer that took it meanwhile would have to go again, at the price of a snapshot each
way."""

IDLE_S: Final = 300.0
"""A neighbour from which nothing was accepted for so long after it came, or that still has few neighbours, may have to
go: a snapshot of 1 GiB takes as long at 30 Mbit/s, and a peer with no neighbour but us for five minutes should try
elsewhere too."""


SETTLED_S: Final = 60.0
"""A verified neighbour that has been here for so long may be one of those that stay longest. Before that the rings may
be corrected at its cost: all of 32 members that start at once have their places after some 45 s (measured), and a swarm
that grows past a full mesh has to break some of its first ties."""

MAX_MET: Final = 256
"""The latest peers that said hello; they show how many of a network there are. As many as records."""


def everybody_is(peer: PeerId) -> bool:
    """Return True: in a swarm of one region every member is of it."""
    return True


@dataclass(frozen=True, kw_only=True)
class MeshEvidence:
    """What is known of a peer beyond what it says of itself. `standing`: trust in its record, VERIFIED only where it
    was reached at an address of its own. `network`: see core/networks.py. `dialled_us`: whether the peer dialled us.
    `ours`: whether it may be of our region."""

    standing: Callable[[PeerId], RecordTrust]
    network: Callable[[PeerId], str | None]
    dialled_us: Callable[[PeerId], bool]
    ours: Callable[[PeerId], bool] = everybody_is


class Mesh:
    """The table of neighbours."""

    def __init__(
        self,
        *,
        me: PeerId,
        scope: Scope,
        degree: int,
        rng: random.Random,
        scores: ScoreTable,
        actions: ActionQueue,
        evidence: MeshEvidence,
        roles: Roles | None = None,
    ) -> None:
        self.table: dict[PeerId, Neighbour] = {}
        self.leaving = False
        self.anchors: frozenset[PeerId] = frozenset()
        self._me = me
        self._degree = degree
        self._rng = rng
        self._scores = scores
        self._actions = actions
        self._evidence = evidence
        self._roles = roles or Roles(me)
        self._departed: OrderedDict[PeerId, float] = OrderedDict()
        self._swapped_at = float("-inf")
        self.rings = Rings(me, scope, degree)
        """Rings of peers that are verified, or were before a restart, as many of each network as its share allows."""
        self._rumoured = self.rings.with_same_places()
        self._rewired = KeyedTokenBucket(burst=max(1, degree - self.rings.free_places), per_s=1 / SWAP_EVERY_S)
        self._freed: deque[float] = deque(maxlen=degree)
        self._absent = Backoff(least=ABSENT_MIN_S, most=ABSENT_MAX_S, rng=rng)
        self._calls: dict[PeerId, tuple[str, bool]] = {}
        """The group of each neighbour, and whether it dialled us; refreshed now and then, since it costs something."""
        self._heard_of: dict[PeerId, str] = {}
        """The group of each peer that can be dialled and is not known to be gone."""
        self._candidates: dict[PeerId, str] = {}
        """The group of each peer that could stand on the rings; `_sizes`: members of each group; `_drawn`: those that
        do stand there."""
        self._sizes: Counter[str] = Counter()
        self._drawn: Counter[str] = Counter()
        self._ring_share = 1
        self._met: OrderedDict[PeerId, str] = OrderedDict()

    def has_room_for(self, peer: PeerId, now: float) -> bool:
        """Return whether `peer` is a neighbour or may become one with its present verification."""
        if peer in self.table:  # also while leaving: pulls under way may finish
            return True
        verified = self._verified(peer)
        if len(self.table) >= self._degree and not verified and peer not in self.anchors:
            return False  # what most strangers are told, at little cost
        return self._may_come(peer, now) and self._admits(peer, now, verified=verified)

    def would_take(self, peer: PeerId, now: float) -> bool:
        """Return whether `peer` is a neighbour or might become one once it answers at its address: it is worth a
        dial."""
        return peer in self.table or (self._may_come(peer, now) and self._admits(peer, now, verified=True))

    @property
    def wide(self) -> bool:
        """Whether more members are known than there are places."""
        return bool(self.sought)

    @property
    def sought(self) -> frozenset[PeerId]:
        """Peers that the rings would put beside us if all reports are true: they are dialled first."""
        return self._rumoured.wanted

    @property
    def belonging(self) -> frozenset[PeerId]:
        """Peers that the rings put beside us, or would if all reports are true."""
        return self.rings.wanted | self.sought

    @property
    def has_places(self) -> bool:
        """Whether there are fewer neighbours than we look for. Beyond a full mesh the last free places stay open, so
        that a newcomer finds one."""
        spare = self.rings.free_places // 2 if self.wide else 0
        return not self.leaving and len(self.table) < self._degree - spare

    def called_for(self, now: float) -> frozenset[PeerId]:
        """Return who is dialled whether or not there are free places: the operator's peers, those that belong beside us
        if the reports are true, and, where all places are taken, everybody, if somebody would have to go for a peer
        that answers."""
        chosen = self.belonging | self.anchors
        if len(self.table) >= self._degree:
            here = self._occupancy(now)
            for_another_network = here.surplus(share_of(self._degree, len(here.groups) + 1))
            if for_another_network or (not self.wide and not all(it.lasts for it in here.occupants)):
                chosen = chosen.union(self._heard_of)
        return chosen.difference(self.table)

    def group_of(self, peer: PeerId) -> str:
        """Return the group under which a peer is counted: its network (core/networks.py)."""
        return group_of(peer, self._evidence.network(peer))

    def look_round(self, heard_of: Iterable[PeerId], now: float) -> None:
        """Draw the rings anew from the peers that are not known to be gone. `heard_of`: all peers that can be dialled;
        those that were verified first come first."""
        there = [peer for peer in heard_of if self.is_there(peer, now)]
        self._heard_of = {peer: self.group_of(peer) for peer in there}
        self._calls = {peer: (self.group_of(peer), self._evidence.dialled_us(peer)) for peer in self.table}
        neighbours = [peer for peer in self.table if peer not in self._heard_of]
        known = [peer for peer in (*there, *neighbours) if self._evidence.standing(peer) >= RecordTrust.KEPT]
        candidates = {peer: self.group_of(peer) for peer in known}
        if candidates != self._candidates:
            self._candidates, self._sizes = candidates, Counter(candidates.values())
            self._ring_share = largest_share(self._sizes.values(), share_of(self._degree, len(self._sizes)))
        on_rings = bounded(known, candidates.__getitem__, self._ring_share)
        self._drawn = Counter(candidates[peer] for peer in on_rings)
        self.rings.see(on_rings)
        # Peers that may be there are dialled, except those of a crowd without a place on the rings.
        self._rumoured.see({*self.table, *there}.difference(candidates).union(on_rings))
        for peer in self._occupancy(now).to_trim():
            self.drop(peer, "its network has more than its share")

    def met(self, peer: PeerId) -> None:
        """Note that a peer has said hello, whatever becomes of it."""
        self._met[peer] = self.group_of(peer)
        self._met.move_to_end(peer)
        while len(self._met) > MAX_MET:
            self._met.popitem(last=False)

    def is_there(self, peer: PeerId, now: float) -> bool:
        """Return whether a known peer may be in the swarm: nothing shows that it is gone."""
        return self.dialable(peer, now) and self._absent.due(peer, now)

    def present(self, peer: PeerId) -> None:
        """Note a sign of life: the peer has its places on the rings again."""
        self._absent.succeeded(peer)

    def absent(self, peer: PeerId, now: float) -> None:
        """Note that a peer does not answer: others take its places on the rings for a while."""
        self._absent.failed(peer, now)

    def admit(self, peer: PeerId, its_neighbours: int, now: float) -> None:
        """Admit `peer` if there is room, or if one of ours can go for it."""
        if peer in self.table or not self._may_come(peer, now) or not self._roles.trains(peer):
            return
        newcomer = self._newcomer(peer, verified=self._verified(peer), lonely=its_neighbours <= self._degree // 4)
        admission = self._occupancy(now, newcomer).admission(newcomer)
        if admission is None:
            return
        if newcomer.wanted:
            self.rings.add(peer)
            self._drawn[newcomer.group] += peer not in self._candidates
        if admission.rewires:
            self._rewired.take("", now)
        if admission.swaps:
            self._swapped_at = now
        if admission.evicts is not None:
            self.drop(admission.evicts, admission.why)
        self.table[peer] = Neighbour(peer, now)
        self._calls[peer] = newcomer.group, newcomer.dialled_us
        self._departed.pop(peer, None)
        self.present(peer)
        self._actions.add(Follow(peer=peer))
        self._actions.tell("neighbour_up", peer)

    def lose(self, peer: PeerId, why: str) -> None:
        """Forget a neighbour; no-op for any other peer."""
        self._calls.pop(peer, None)
        if self.table.pop(peer, None) is not None:
            self._actions.add(Unfollow(peer=peer))
            self._actions.tell("neighbour_lost", peer, detail=why)

    def drop(self, peer: PeerId, why: str) -> None:
        """Forget a neighbour, and close all connections to a peer, neighbour or not."""
        self.lose(peer, why)
        self._actions.add(Disconnect(peer=peer))

    def vanish(self, peer: PeerId, why: str, now: float) -> None:
        """Drop a neighbour that left without a goodbye."""
        if peer in self.table:
            self.absent(peer, now)
            self._free(peer, now)
            self.lose(peer, why)

    def depart(self, peer: PeerId, now: float) -> None:
        """Drop a peer that said goodbye."""
        self._departed[peer] = now + DEPARTED_S
        while len(self._departed) > MAX_DEPARTED:
            self._departed.popitem(last=False)
        self._free(peer, now)
        self.lose(peer, "it left")

    def dialable(self, peer: PeerId, now: float) -> bool:
        """Return whether we want a connection to this peer at all."""
        if peer == self._me or self.leaving or self._scores.banned(peer, now):
            return False
        return self._departed.get(peer, now) <= now and self._roles.wanted(peer)

    def _may_come(self, peer: PeerId, now: float) -> bool:
        if self.leaving or self._scores.banned(peer, now) or self._roles.listens(peer):
            return False
        return self._evidence.ours(peer)

    def _admits(self, peer: PeerId, now: float, *, verified: bool) -> bool:
        """Return whether a peer would be admitted without saying that it has few neighbours."""
        newcomer = self._newcomer(peer, verified=verified)
        return self._occupancy(now, newcomer).admission(newcomer) is not None

    # -- what is decided by

    def _verified(self, peer: PeerId) -> bool:
        return self._evidence.standing(peer) is RecordTrust.VERIFIED

    def _newcomer(self, peer: PeerId, *, verified: bool, lonely: bool = False) -> Newcomer:
        group = self.group_of(peer)
        return Newcomer(
            peer=peer,
            group=group,
            known=self._known_of(group, peer),
            verified=verified,
            anchor=peer in self.anchors,
            dialled_us=self._evidence.dialled_us(peer),
            wanted=verified and self._wanted(peer, group),
            lonely=lonely,
        )

    def _known_of(self, group: str, peer: PeerId) -> int:
        """Return how many of a group are here, known or just connecting, this peer included."""
        if group == peer:  # one of our own network: a group of its own
            return 1
        known = {each for each, its in (*self._candidates.items(), *self._met.items()) if its == group}
        known.update(each for each in self.table if self._calls[each][0] == group)
        return len(known | {peer})

    def _wanted(self, peer: PeerId, group: str) -> bool:
        """Return whether the rings put a verified peer beside us; also one that has just come, unless its network has
        enough on them."""
        if peer in self._candidates:
            return peer in self.rings.wanted
        return self._drawn[group] < self._ring_share and self.rings.wants(peer)

    def _occupancy(self, now: float, newcomer: Newcomer | None = None) -> Occupancy:
        """Return who has the places, on rings that include the newcomer only if it belongs there. Otherwise a crowd,
        each nearer than the one before, would hold more places than rings have."""
        wanted = self.rings.wanted
        if newcomer is not None and newcomer.wanted:
            wanted = self.rings.wanted_with(newcomer.peer)
        return Occupancy(
            degree=self._degree,
            staying=self._degree - max(1, self.rings.free_places),
            occupants=[self._occupant(peer, it, peer in wanted, now) for peer, it in self.table.items()],
            groups=frozenset(self._sizes),
            others=self._others(newcomer.peer) if newcomer is not None and newcomer.dialled_us else 0,
            wide=self.wide,
            held=self._held(now),
            may_rewire=self._rewired.has("", now),
            may_swap=now >= self._swapped_at + SWAP_EVERY_S,
            rng=self._rng,
        )

    def _others(self, newcomer: PeerId) -> int:
        """Return how many absent members we might dial and admit, of each network as many as its share allows."""
        share, held = share_of(self._degree, len(self._sizes)), Counter(self._calls[each][0] for each in self.table)
        there = (group for peer, group in self._heard_of.items() if peer not in self.table and peer != newcomer)
        return sum(min(count, max(0, share - held[group])) for group, count in Counter(there).items())

    def _occupant(self, peer: PeerId, it: Neighbour, wanted: bool, now: float) -> Occupant:
        group, dialled_us = self._calls[peer]
        return Occupant(
            peer=peer,
            group=group,
            verified=self._verified(peer),
            anchor=peer in self.anchors,
            dialled_us=dialled_us,
            wanted=wanted,
            tracked=it.tracked,
            settled=now >= it.since + SETTLED_S,
            idle=now >= it.since + IDLE_S and (not it.tracked or it.neighbours <= self._degree // 4),
            rich=it.neighbours > self._degree // 2,
        )

    def _free(self, peer: PeerId, now: float) -> None:
        if peer in self.table and peer in self.rings.wanted:
            self._freed.append(now + HELD_S)

    def _held(self, now: float) -> int:
        """Return how many places wait for the peers that the rings put there."""
        return min(sum(until > now for until in self._freed), len(self.rings.wanted.difference(self.table)))
