"""Exchanges of simulated nodes: those who see the same group are in it, and no part of theirs is late."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import torch

from gossip.allreduce.allreduce import Group
from gossip.core.ids import PeerId
from p2ptrain.sync import AllReduceStrategy, Reduced, SyncStrategy


@dataclass(frozen=True)
class SimulatedMember:
    """A node that averages by group all-reduce, and the nodes that it knows."""

    sync: AllReduceStrategy
    known: Collection[str]


@dataclass(frozen=True, kw_only=True)
class Round:
    """A round's exchanges, by node: its packed model, its group, what came of it, and the bytes that it sent."""

    packed: Mapping[str, bytes]
    groups: Mapping[str, list[str]]
    parts: Mapping[str, list[Reduced]]
    sent: Mapping[str, int]


def members(nodes: Mapping[str, tuple[SyncStrategy, Collection[str]]]) -> dict[str, SimulatedMember] | None:
    """Return the nodes as members of group all-reduces; None where their strategy is another one."""
    averaging = {
        name: SimulatedMember(sync, known)
        for name, (sync, known) in nodes.items()
        if isinstance(sync, AllReduceStrategy)
    }
    return averaging or None


def exchange(nodes: Mapping[str, SimulatedMember], thetas: Mapping[str, torch.Tensor], round: int) -> Round:
    """Carry out the exchanges of all groups."""
    packed = {name: node.sync.pack(thetas[name]) for name, node in nodes.items()}
    groups = {name: node.sync.peer_selection(node.known, round=round) for name, node in nodes.items()}
    sent = dict.fromkeys(nodes, 0)
    reduced: dict[str, bytes] = {}
    shapes = {name: _shape(group, round, packed[name]) for name, group in groups.items() if len(group) > 1}
    for owner, shape in shapes.items():
        present = [name for name in shape.members if groups.get(name) == groups[owner]]
        part = shape.part(PeerId(owner))
        if part.stop <= part.start:
            continue
        reduced[owner] = nodes[owner].sync.reduce({name: memoryview(packed[name])[part] for name in present})
        for name in present:
            if name != owner:
                sent[name] += part.stop - part.start
                sent[owner] += len(reduced[owner])
    parts = {name: _parts(shapes.get(name), groups, reduced) for name in nodes}
    return Round(packed=packed, groups=groups, parts=parts, sent=sent)


def _shape(group: list[str], round: int, packed: bytes) -> Group:
    return Group(members=tuple(map(PeerId, group)), round=round, size=len(packed))


def _parts(shape: Group | None, groups: Mapping[str, list[str]], reduced: Mapping[str, bytes]) -> list[Reduced]:
    """What comes of each part of a group: nothing of those whose owner sees another one."""
    if shape is None:
        return []
    owners = [owner for owner in shape.members if shape.part_size(owner)]
    there = {owner for owner in owners if groups.get(owner) == list(shape.members)}
    return [Reduced(owner, shape.part(owner), reduced[owner] if owner in there else None) for owner in owners]
