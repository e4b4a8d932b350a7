"""Who gets a place among the neighbours, and at whose cost: a pure decision from who has one now.

Keys are free, and a newcomer says of itself what it likes. So a hello alone earns a free place, and nothing else. Only
peers that we have *verified*, by reaching them at an address of their own signed record, have rights. Of these, one
network holds a share of the places (core/networks.py). A peer beyond that share is *surplus*: it may have what nobody
else wants.

- A free place goes to the peer that comes. But some stay free for those whom we are dialling ourselves, for those whom
  the rings (discovery/topology.py) put there, and, where surplus comes, for other networks.
- When all are taken, surplus gives way to any verified newcomer that is not surplus. An unverified neighbour gives way
  to a peer that the rings put beside us, and, where there would be a place for everyone, to every verified one.
- Of the verified, those that have been here longest stay, as many as the rings have places. The others may have to go
  for one that the rings put beside us, or, one in 30 s, for a lonely newcomer.
- A network is *crowded* when more of its peers are here, known or just connecting than its share. Its members replace
  only each other and other networks' surplus: a crowd in one network gets only free places.
- The peers that the operator named (anchors) are always admitted, and stay.

What this defends against and what not: docs/decisions/0033.
"""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from gossip.core.ids import PeerId
from gossip.core.networks import PARTS, share_of


@dataclass(frozen=True, kw_only=True)
class Occupant:
    """A neighbour. `group`: of its network. `settled`: here so long that it may stay. `idle`: it has given nothing for
    long, or still says that it has few neighbours; `rich`: it says that it has many neighbours."""

    peer: PeerId
    group: str
    verified: bool
    anchor: bool
    dialled_us: bool
    wanted: bool
    tracked: bool
    settled: bool
    idle: bool
    rich: bool

    @property
    def lasts(self) -> bool:
        """Whether it is more than a peer that said hello."""
        return self.verified or self.anchor


@dataclass(frozen=True, kw_only=True)
class Newcomer:
    """A peer that asks for a place. `known`: how many of its group are here, known or just connecting, itself included.
    `wanted`: the rings put it beside us. `lonely`: it says that it has few neighbours."""

    peer: PeerId
    group: str
    known: int = 1
    verified: bool
    anchor: bool = False
    dialled_us: bool = False
    wanted: bool = False
    lonely: bool = False


@dataclass(frozen=True, kw_only=True)
class NeighbourAdmission:
    """How a newcomer is admitted: at the cost of `evicts`, for this reason, or of nobody. `rewires`, `swaps`: it is one
    of the changes that are limited in number."""

    evicts: PeerId | None = None
    why: str = ""
    rewires: bool = False
    swaps: bool = False


@dataclass(frozen=True, kw_only=True)
class Occupancy:
    """Who has the places, and what else matters for the decision."""

    degree: int
    staying: int
    """Places of the verified occupants that are here longest, whom only an anchor replaces."""
    occupants: Sequence[Occupant]
    """In the order in which they came."""
    groups: frozenset[str]
    """Groups of all verified members that are known."""
    others: int
    """Absent members whom we might dial and would admit; the newcomer is not counted."""
    wide: bool
    """Whether more members are reported than there are places."""
    held: int
    """Free places that wait for the peers that the rings put there."""
    may_rewire: bool
    may_swap: bool
    rng: random.Random

    @property
    def open_for_others(self) -> int:
        """Free places that are not for surplus."""
        return max(1, self.degree // PARTS)

    def admission(self, newcomer: Newcomer) -> NeighbourAdmission | None:
        """Return how the newcomer is admitted; None: not at all."""
        if newcomer.anchor:
            return self._of_anchor()
        within = self._within_share(newcomer)
        wanted = newcomer.wanted and newcomer.verified and within
        if self._fits(newcomer, within, wanted):
            return NeighbourAdmission()
        if not (newcomer.verified and within) or len(self.occupants) < self.degree:
            return None
        crowded = newcomer.known > self._share_beside(newcomer)
        return (
            self._for_surplus(newcomer)
            or (None if crowded else self._for_unverified(wanted))
            or (self._for_ring() if wanted and not crowded else None)
            or (self._for_lonely(newcomer, crowded) if newcomer.lonely else None)
        )

    def to_trim(self) -> list[PeerId]:
        """Return the surplus that must leave the places not meant for it: peers that have not settled, and came when
        they were no surplus because no other network was known."""
        too_many = len(self.occupants) - (self.degree - self.open_for_others)
        fresh = [it.peer for it in reversed(self.surplus()) if not it.settled]
        return fresh[: max(0, too_many)]

    # -- shares

    def share(self, also: str | None = None) -> int:
        """Return how many places one group may hold; `also`: beside one of this group. A peer that only said hello is
        no group."""
        groups = self.groups.union(it.group for it in self.occupants if it.verified)
        return share_of(self.degree, len(groups if also is None else groups | {also}))

    def _share_beside(self, newcomer: Newcomer) -> int:
        return self.share(newcomer.group if newcomer.verified else None)

    def _within_share(self, newcomer: Newcomer) -> bool:
        """Return whether a newcomer is no surplus. Verified peers of its network come first."""
        before = [it for it in self.occupants if it.group == newcomer.group and (it.lasts or not newcomer.verified)]
        return len(before) < self._share_beside(newcomer)

    def surplus(self, share: int | None = None) -> list[Occupant]:
        """Return occupants beyond their network's share, the first to go last: those that only said hello, then the
        newest. Anchors are never surplus, but count in the share."""
        share, counted, beyond = share or self.share(), Counter[str](), []
        for it in sorted(self.occupants, key=lambda it: not it.lasts):
            counted[it.group] += 1
            if counted[it.group] > share and not it.anchor:
                beyond.append(it)
        return beyond

    @cached_property
    def _unverified(self) -> list[Occupant]:
        return [it for it in self.occupants if not it.lasts]

    # -- free places

    def _fits(self, newcomer: Newcomer, within: bool, wanted: bool) -> bool:
        if not newcomer.verified and self.wide and len(self._unverified) >= max(1, self.degree // 2):
            return False
        kept = max(
            0 if within else self.open_for_others,
            0 if wanted else self.held,
            self._promised() if newcomer.dialled_us and not wanted else 0,
        )
        return len(self.occupants) + kept < self.degree

    def _promised(self) -> int:
        """Return how many places are kept for peers that we dial: half of all, less those that such peers have, while
        there is somebody to dial. The other half goes to those who call first and most often."""
        ours = sum(it.anchor or not it.dialled_us for it in self.occupants)
        return max(0, min(self.degree // 2 - ours, self.others))

    # -- at somebody's cost

    def _of_anchor(self) -> NeighbourAdmission | None:
        if len(self.occupants) < self.degree:
            return NeighbourAdmission()
        others = [it for it in self.occupants if not it.anchor]
        if not others:
            return None
        idle = [it for it in others if it.idle]
        weakest = [*reversed(self.surplus()), *reversed(self._unverified), *idle, others[-1]][0]
        return NeighbourAdmission(evicts=weakest.peer, why="its place goes to a peer of the operator's")

    def _for_surplus(self, newcomer: Newcomer) -> NeighbourAdmission | None:
        surplus = [it for it in self.surplus(self._share_beside(newcomer)) if it.group != newcomer.group]
        if not surplus:
            return None
        return NeighbourAdmission(evicts=surplus[-1].peer, why="its place goes to one of a network that has fewer")

    def _for_unverified(self, wanted: bool) -> NeighbourAdmission | None:
        if not self._unverified or (self.wide and not wanted):
            return None
        return NeighbourAdmission(
            evicts=self._unverified[-1].peer, why="its place goes to one that was reached at its address"
        )

    def _for_ring(self) -> NeighbourAdmission | None:
        loose = [it for it in self._not_staying(at_once=False) if not it.wanted]
        if not loose or not self.may_rewire:
            return None
        return NeighbourAdmission(
            evicts=loose[-1].peer, why="its place goes to one that the rings put beside us", rewires=True
        )

    def _for_lonely(self, newcomer: Newcomer, crowded: bool) -> NeighbourAdmission | None:
        """Return the change for a lonely newcomer. Without it, a clique of full nodes would shut out every newcomer."""
        loose = [it for it in self._not_staying(at_once=True) if not crowded or it.group == newcomer.group]
        loose = [it for it in loose if not it.wanted] or loose
        weak = [it for it in loose if not it.lasts] or [it for it in loose if it.idle]
        candidates = weak or [it for it in loose if it.rich]
        if not candidates or not self.may_swap:
            return None
        chosen = self.rng.choice(candidates)
        return NeighbourAdmission(evicts=chosen.peer, why="its place goes to a lonely newcomer", swaps=True)

    def _not_staying(self, *, at_once: bool) -> list[Occupant]:
        """Return the occupants that may have to go. `at_once`: those here longest also stay when they have not
        settled."""
        surplus = set(self.surplus())
        lasting = [it for it in self.occupants if it.lasts and (it.tracked or not it.idle) and it not in surplus]
        stay = {it.peer for it in [it for it in lasting if it.settled or at_once][: self.staying]}
        return [it for it in self.occupants if not it.anchor and it.peer not in stay]
