"""Who gets a place among the neighbours, and at whose cost: a pure decision over who has one now.

Keys are free, and a newcomer says of itself what it likes. So a hello alone earns a place that is free, and nothing
else. Rights have those that we have *verified*: reached at an address of their own signed record. Of these, one network
holds a share of the places (core/networks.py), and whoever is beyond it is *surplus*: it may have what nobody else
wants.

- A place that is free goes to whoever comes; but some stay free for those whom we are dialling ourselves, for whom the
  rings (discovery/topology.py) put there, and, from a network's surplus, for other networks.
- When all are taken, surplus gives way to any verified newcomer that is none. Who is not verified gives way to one that
  the rings put beside us, and, where there would be a place for everyone, to every verified one.
- Of the verified those that have been here longest stay, as many as the rings have places. The others may have to go
  for one that the rings put beside us, or, one in 30 s, for a lonely newcomer.
- A network is *crowded* when more of it are here, known or at the door than its share. Its members push nobody out, but
  each other and other networks' surplus: a crowd in one network lives off what is free.
- The peers that the operator named (anchors) always get in, and stay.

What this holds against and what not: docs/decisions/0033.
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
    """A neighbour. `group`: of its network. `settled`: for so long that it may stay. `idle`: it has given nothing for
    long, or says still that it is lonely; `rich`: it says that it has many neighbours."""

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
        """Whether it is more than one that said hello."""
        return self.verified or self.anchor


@dataclass(frozen=True, kw_only=True)
class Newcomer:
    """A peer that would have a place. `known`: how many of its group are here, known or at the door, itself included.
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
    """How a newcomer gets in: at the cost of `evicts`, for this reason, or of nobody. `rewires`, `swaps`: it is one of
    the changes that are rationed."""

    evicts: PeerId | None = None
    why: str = ""
    rewires: bool = False
    swaps: bool = False


@dataclass(frozen=True, kw_only=True)
class Occupancy:
    """Who has the places, and what else matters now."""

    degree: int
    staying: int
    """Verified occupants, those here longest, that nobody but an anchor pushes out."""
    occupants: Sequence[Occupant]
    """The one that came first comes first."""
    groups: frozenset[str]
    """Of all verified members that are known."""
    others: int
    """Members whom we might dial and would take, that are not here; the newcomer is not counted."""
    wide: bool
    """Whether there are more members than places, as far as we have heard."""
    held: int
    """Free places that wait for whom the rings put there."""
    may_rewire: bool
    may_swap: bool
    rng: random.Random

    @property
    def open_for_others(self) -> int:
        """Free places that are not for surplus."""
        return max(1, self.degree // PARTS)

    def admission(self, newcomer: Newcomer) -> NeighbourAdmission | None:
        """How it gets in; None: not at all."""
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
        """Surplus that has not settled and came when it was none, as nobody of another network was known: it leaves the
        places that are not for surplus."""
        too_many = len(self.occupants) - (self.degree - self.open_for_others)
        fresh = [it.peer for it in reversed(self.surplus()) if not it.settled]
        return fresh[: max(0, too_many)]

    # -- shares

    def share(self, also: str | None = None) -> int:
        """How many places one group may hold; `also`: beside one of this group. Who only said hello makes no group."""
        groups = self.groups.union(it.group for it in self.occupants if it.verified)
        return share_of(self.degree, len(groups if also is None else groups | {also}))

    def _share_beside(self, newcomer: Newcomer) -> int:
        return self.share(newcomer.group if newcomer.verified else None)

    def _within_share(self, newcomer: Newcomer) -> bool:
        """Whether a newcomer is no surplus. Those of its network that are verified come first."""
        before = [it for it in self.occupants if it.group == newcomer.group and (it.lasts or not newcomer.verified)]
        return len(before) < self._share_beside(newcomer)

    def surplus(self, share: int | None = None) -> list[Occupant]:
        """Occupants beyond their network's share, the first to go last: those that only said hello, then the newest.
        Anchors are none, but count."""
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
        """Places that are for those whom we dial: half of all, less those that such have, while there is somebody to
        dial. Who calls first and most often has the other half."""
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
        """Without this, a clique of full nodes would shut out whoever comes next."""
        loose = [it for it in self._not_staying(at_once=True) if not crowded or it.group == newcomer.group]
        loose = [it for it in loose if not it.wanted] or loose
        weak = [it for it in loose if not it.lasts] or [it for it in loose if it.idle]
        candidates = weak or [it for it in loose if it.rich]
        if not candidates or not self.may_swap:
            return None
        chosen = self.rng.choice(candidates)
        return NeighbourAdmission(evicts=chosen.peer, why="its place goes to a lonely newcomer", swaps=True)

    def _not_staying(self, *, at_once: bool) -> list[Occupant]:
        """Occupants that may have to go. `at_once`: those here longest stay also when they have not settled."""
        surplus = set(self.surplus())
        lasting = [it for it in self.occupants if it.lasts and (it.tracked or not it.idle) and it not in surplus]
        stay = {it.peer for it in [it for it in lasting if it.settled or at_once][: self.staying]}
        return [it for it in self.occupants if not it.anchor and it.peer not in stay]
