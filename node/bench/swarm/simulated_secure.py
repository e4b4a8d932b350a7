"""Secure averaging of simulated nodes: all of a group are in its sum, to the bits that the protocol opens.

Where members are drawn by grants, each has one of its own. Keys, shares and signatures are not counted as traffic: they
do not grow with the model.
"""

from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b

import numpy as np
import torch

from node.bench.swarm.simulated_node import SimulatedNode
from node.bench.swarm.traffic import Traffic
from p2ptrain.sync import GroupSum, RoundResult, SecureStrategy, SyncStrategy
from p2ptrain.sync.fixed_point import Words_d


class SimulatedSecure:
    """Closes the rounds of a swarm whose nodes all know each other. ValueError where a node's strategy is no
    SecureStrategy."""

    def __init__(self, honest: Sequence[SimulatedNode], liars: Sequence[SimulatedNode], *, traffic: Traffic) -> None:
        self._honest = honest
        self._traffic = traffic
        self._members = {node.name: _checked(node.sync) for node in (*honest, *liars)}

    def exchange(self, thetas: Mapping[str, torch.Tensor], round: int) -> Iterator[RoundResult]:
        """Sum the differences of all groups."""
        first = next(iter(self._members.values()))
        placements = {name: blake2b(name.encode(), digest_size=32).digest() for name in self._members}
        groups = first.groups(sorted(self._members), round=round, placements=placements)
        place_of = {name: place for place, group in enumerate(groups) for name in group}
        words = {
            name: sync.pack(thetas[name], round=round, members=max(1, len(groups[place_of[name]]) if groups else 1))
            for name, sync in self._members.items()
        }
        sums = {place: _opened(group, words, first.width(len(group))) for place, group in enumerate(groups)}
        for node in self._honest:
            self._count(groups, place_of.get(node.name), words[node.name])
        return (
            sync.finish_(thetas[name].clone(), sums, place_of.get(name, -1), round=round)
            for name, sync in self._members.items()
        )

    def _count(self, groups: Sequence[Sequence[str]], place: int | None, words_v: Words_d) -> None:
        """Count what a node sends: its masked vector by parts, its part of the sum to each, and its group's sum to a
        share of the other groups' members."""
        if place is None:
            return
        group, first = groups[place], next(iter(self._members.values()))
        size = -(-words_v.size * first.width(len(group)) // 8)
        others = sum(len(each) for at, each in enumerate(groups) if at != place)
        sent = 2 * size * (len(group) - 1) // len(group) + others * first.published_size(len(group)) // len(group)
        self._traffic.exchange(size, sent)


def _opened(group: Sequence[str], words: Mapping[str, Words_d], width: int) -> GroupSum:
    total_v = np.zeros(words[group[0]].size, np.uint32)
    for name in group:
        total_v += words[name]
    total_v &= np.uint32((1 << width) - 1)
    return GroupSum(members=group, survivors=frozenset(group), words_v=total_v)


def _checked(sync: SyncStrategy) -> SecureStrategy:
    if not isinstance(sync, SecureStrategy):
        raise ValueError(f"the strategy {sync.name!r} names the averager secure, and has no secure sums")
    return sync
