"""Graphs of members, for tests: what the rings draw, and how well a graph is tied together."""

import math
from collections.abc import Collection, Mapping

import numpy as np
from gossip_samples import SCOPE

from gossip.core.ids import PeerId
from gossip.discovery.topology import Rings

Graph = Mapping[PeerId, Collection[PeerId]]


def names(count: int, seed: int = 0) -> list[PeerId]:
    return [PeerId(f"{seed}:{number}") for number in range(count)]


def rings_of(members: Collection[PeerId], degree: int) -> dict[PeerId, frozenset[PeerId]]:
    """Whom each member wants beside it, when all know all."""
    graph = {}
    for peer in members:
        it = Rings(peer, SCOPE, degree)
        it.see(members)
        graph[peer] = it.wanted
    return graph


def gap_of(graph: Graph) -> float:
    """The second smallest eigenvalue of the graph's Laplacian over its mean degree; 0 when it is not connected."""
    place = {peer: index for index, peer in enumerate(graph)}
    adjacent = np.zeros((len(place), len(place)))
    for peer, beside in graph.items():
        for other in beside:
            adjacent[place[peer], place[other]] = adjacent[place[other], place[peer]] = 1.0
    degrees = adjacent.sum(axis=0)
    if not degrees.any():
        return 0.0
    return float(max(0.0, np.linalg.eigvalsh(np.diag(degrees) - adjacent)[1]) / degrees.mean())


def random_regular_gap(degree: float) -> float:
    """What random regular graphs have, almost: 1 - 2 sqrt(k - 1) / k (Friedman 2003; no infinite family has more)."""
    return 1 - 2 * math.sqrt(degree - 1) / degree
