"""Whom a node averages with in a round: everybody, a partner, or a group.

A partner must choose us as we choose it, with no word spoken: both work it out from the peers' names, the round, and a
seed that all members share, the initial model's digest. Two nodes that know the same peers agree on everything; where
they know different ones, some choices are one-sided, and the average is then a little off, as in any gossip. Who is
paired with whom can be foreseen by everybody, liars included.
"""

import hashlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Protocol

import torch

from p2ptrain.sync.vectors import to_bytes

SEED_BYTES = 16


class PeerSelection(Protocol):
    """Chooses among the neighbours."""

    def chosen(self, peers: Sequence[str], round: int) -> list[str]:
        """Those of the tracked neighbours to average with in this round, in the order given."""


def shared_seed(genesis_d: torch.Tensor) -> bytes:
    """Return a seed that all members have, since all begin with the same model."""
    return hashlib.blake2b(to_bytes(genesis_d), digest_size=SEED_BYTES).digest()


class Everyone:
    """All neighbours."""

    def chosen(self, peers: Sequence[str], round: int) -> list[str]:
        """Return whom to average with in this round, of these peers."""
        return list(peers)


EVERYONE: PeerSelection = Everyone()


@dataclass(frozen=True)
class RandomMatching:
    """One partner, another in every round: a matching of all known members, as NoLoCo (2506.10911) has it.

    Every pair of members draws a number for the round, and the pairs are taken in its order as long as both are free.
    (A shuffled list of members would shift by one, and match nobody alike, where one member is known to some only.)
    With an odd number one is left over, and averages with nobody. Cost: O(n^2 log n) for n members.
    """

    own: str
    seed: bytes

    def chosen(self, peers: Sequence[str], round: int) -> list[str]:
        """Return whom to average with in this round, of these peers."""
        members = sorted({self.own, *peers})
        free = set(members)
        for one, other in sorted(combinations(members, 2), key=lambda pair: _draw(self.seed, round, *pair)):
            if {one, other} <= free:
                if self.own in (one, other):
                    return [other if one == self.own else one]
                free -= {one, other}
        return []


@dataclass(frozen=True)
class GridGroups:
    """Moshpit's groups (2103.03239): members lie on a grid, and a round averages along one of its axes.

    Members are shuffled anew for each pass over the d axes and numbered; the number's digits to the base `size` are the
    place on the grid. Those that differ in one digit only are a group. After d rounds everybody has met everybody's
    groups: n = size^(d-1) k, k <= size, makes the average exact; any other n a good deal nearer.
    """

    own: str
    seed: bytes
    size: int

    def chosen(self, peers: Sequence[str], round: int) -> list[str]:
        """Return whom to average with in this round, of these peers."""
        axes = self.axes(len({self.own, *peers}))
        passes, axis = divmod(round, axes)
        members = sorted({self.own, *peers}, key=lambda name: _draw(self.seed, passes, name))
        place = {name: number for number, name in enumerate(members)}
        group = self._group(place[self.own], axis)
        return [peer for peer in peers if peer != self.own and self._group(place[peer], axis) == group]

    def axes(self, members: int) -> int:
        """d: the least with size^d >= members."""
        axes, places = 1, self.size
        while places < members:
            axes, places = axes + 1, places * self.size
        return axes

    def _group(self, place: int, axis: int) -> tuple[int, int]:
        """The number without the digit of this axis."""
        stride = self.size**axis
        return place // (stride * self.size), place % stride


def in_turn(members: Collection[str], seed: bytes, round: int) -> list[str]:
    """Return the members of a group in an order drawn for the round: of models with fewer parts than members the last
    ones own one, and that is not to be the same ones always."""
    return sorted(members, key=lambda name: _draw(seed, round, name))


@dataclass(frozen=True)
class Alternating:
    """Selects by `special` in the rounds that `is_special` names, and by `usual` in all others."""

    usual: PeerSelection
    special: PeerSelection
    is_special: Callable[[int], bool]

    def chosen(self, peers: Sequence[str], round: int) -> list[str]:
        """Return whom to average with in this round, of these peers."""
        return (self.special if self.is_special(round) else self.usual).chosen(peers, round)


def _draw(seed: bytes, number: int, *names: str) -> bytes:
    # Names have their lengths before them, so that no two lists of names read alike.
    told = b"".join(len(raw).to_bytes(4, "big") + raw for raw in (name.encode() for name in names))
    return hashlib.blake2b(number.to_bytes(8, "big") + told, key=seed, digest_size=16).digest()
