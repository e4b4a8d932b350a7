"""All-reduce averaging of simulated nodes: those who see the same group are in it, and no part of theirs is late."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from gossip.allreduce.allreduce import Group
from gossip.core.ids import PeerId
from node.bench.swarm.simulated_node import SimulatedNode
from node.bench.swarm.traffic import Traffic
from p2ptrain.sync import AllReduceStrategy, Reduced, RoundResult, SyncStrategy


@dataclass(frozen=True)
class SimulatedMember:
    """A node that takes part, and whom it knows."""

    sync: AllReduceStrategy
    known: Collection[str]


@dataclass(frozen=True, kw_only=True)
class Round:
    """A round's exchanges, by node: its packed model, its group, what came of it, and the bytes that it sent."""

    packed: Mapping[str, bytes]
    groups: Mapping[str, list[str]]
    parts: Mapping[str, list[Reduced]]
    sent: Mapping[str, int]


class SimulatedAllReduce:
    """Closes the rounds of a swarm. ValueError where a node's strategy is no AllReduceStrategy."""

    def __init__(self, honest: Sequence[SimulatedNode], liars: Sequence[SimulatedNode], *, traffic: Traffic) -> None:
        self._honest = honest
        self._traffic = traffic
        self._members = {node.name: SimulatedMember(_checked(node.sync), node.tracked) for node in (*honest, *liars)}

    def exchange(self, thetas: Mapping[str, torch.Tensor], round: int) -> Iterator[RoundResult]:
        """Carry out the exchanges of all groups."""
        round_ = exchange(self._members, thetas, round)
        for node in self._honest:
            self._traffic.exchange(len(round_.packed[node.name]), round_.sent[node.name])
        return (
            member.sync.finish(thetas[name], round_.groups[name], round_.parts[name], round=round)
            for name, member in self._members.items()
        )


def _checked(sync: SyncStrategy) -> AllReduceStrategy:
    if not isinstance(sync, AllReduceStrategy):
        raise ValueError(f"the strategy {sync.name!r} names the averager allreduce, and has no parts to reduce")
    return sync


def exchange(nodes: Mapping[str, SimulatedMember], thetas: Mapping[str, torch.Tensor], round: int) -> Round:
    """Carry out the exchanges of all groups."""
    packed = {name: node.sync.pack(thetas[name], round=round) for name, node in nodes.items()}
    groups = {name: node.sync.peer_selection(node.known, round=round) for name, node in nodes.items()}
    sent = dict.fromkeys(nodes, 0)
    reduced: dict[str, bytes] = {}
    shapes = {
        name: _shape(group, round, packed[name], nodes[name].sync.part_bytes)
        for name, group in groups.items()
        if len(group) > 1
    }
    for owner, shape in shapes.items():
        present = [name for name in shape.members if groups.get(name) == groups[owner]]
        part = shape.part(PeerId(owner))
        if part.stop <= part.start:
            continue
        vectors = {str(name): memoryview(packed[name])[part] for name in present}
        reduced[owner] = nodes[owner].sync.reduce(vectors, group=groups[owner], part=part)
        for name in present:
            if name != owner:
                sent[name] += part.stop - part.start
                sent[owner] += len(reduced[owner])
    parts = {name: _parts(shapes.get(name), groups, reduced) for name in nodes}
    return Round(packed=packed, groups=groups, parts=parts, sent=sent)


def _shape(group: list[str], round: int, packed: bytes, chunk_bytes: int) -> Group:
    return Group(members=tuple(map(PeerId, group)), round=round, size=len(packed), chunk_bytes=chunk_bytes)


def _parts(shape: Group | None, groups: Mapping[str, list[str]], reduced: Mapping[str, bytes]) -> list[Reduced]:
    """What comes of each part of a group: nothing of those whose owner sees another one."""
    if shape is None:
        return []
    owners = [owner for owner in shape.members if shape.part_size(owner)]
    there = {owner for owner in owners if groups.get(owner) == list(shape.members)}
    return [Reduced(owner, shape.part(owner), reduced[owner] if owner in there else None) for owner in owners]
