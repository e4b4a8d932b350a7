"""Whom a node averages with in a round: everybody, or whom a graph says (p2ptrain/graphs).

A partner must choose us as we choose it, with no word spoken: both work it out from the peers' names, the round, and a
seed that all members share, the initial model's digest. Two nodes that know the same peers agree on everything; where
they know different ones, some choices are one-sided, and the average is then a little off, as in any gossip. Who is
paired with whom can be foreseen by everybody, liars included.
"""

import hashlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import torch

from p2ptrain.graphs import Graph, Mixing, group_in, mixing_at
from p2ptrain.graphs.passes import drawn
from p2ptrain.sync.vectors import to_bytes

SEED_BYTES = 16

TO_THE_MEAN: Final = 1.0
"""The step that makes a member what its group is on average."""


class PeerSelection(Protocol):
    """Chooses among the neighbours."""

    def chosen(self, peers: Sequence[str], round: int) -> list[str]:
        """Those of the tracked neighbours to average with in this round, in the order given."""

    def step(self, peers: Sequence[str], round: int) -> float:
        """How far to go towards the mean of those and oneself in this round: above 0 and below 2."""


def shared_seed(genesis_d: torch.Tensor) -> bytes:
    """Return a seed that all members have, since all begin with the same model."""
    return hashlib.blake2b(to_bytes(genesis_d), digest_size=SEED_BYTES).digest()


class Everyone:
    """All neighbours."""

    def chosen(self, peers: Sequence[str], round: int) -> list[str]:
        """Return whom to average with in this round, of these peers."""
        return list(peers)

    def step(self, peers: Sequence[str], round: int) -> float:
        """Return the step to the mean."""
        return TO_THE_MEAN


EVERYONE: PeerSelection = Everyone()


@dataclass(frozen=True)
class GraphSelection:
    """The partners that a graph has for oneself, among the members that one knows."""

    own: str
    seed: bytes
    graph: Graph

    def chosen(self, peers: Sequence[str], round: int) -> list[str]:
        """Return whom to average with in this round, of these peers."""
        partners = self._mixing(peers, round)[self.own]
        return [peer for peer in peers if peer in partners]

    def step(self, peers: Sequence[str], round: int) -> float:
        """Return how far the graph has one's group go towards its mean. ValueError where its edges are no groups."""
        return group_in(self._mixing(peers, round), self.own).step

    def _mixing(self, peers: Sequence[str], round: int) -> Mixing:
        return mixing_at(self.graph, {self.own, *peers}, self.seed, round)


def in_turn(members: Collection[str], seed: bytes, round: int) -> list[str]:
    """Return the members of a group in an order drawn for the round: of models with fewer parts than members the last
    ones own one, and that is not to be the same ones always."""
    return sorted(members, key=lambda name: drawn(seed, round, name))


@dataclass(frozen=True)
class Alternating:
    """Selects by `special` in the rounds that `is_special` names, and by `usual` in all others."""

    usual: PeerSelection
    special: PeerSelection
    is_special: Callable[[int], bool]

    def chosen(self, peers: Sequence[str], round: int) -> list[str]:
        """Return whom to average with in this round, of these peers."""
        return self._of(round).chosen(peers, round)

    def step(self, peers: Sequence[str], round: int) -> float:
        """Return the step of the one whose turn it is."""
        return self._of(round).step(peers, round)

    def _of(self, round: int) -> PeerSelection:
        return self.special if self.is_special(round) else self.usual
