"""How simulated nodes close a round: a counterpart without a network for each of node/training/averagers."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import torch

from node.bench.swarm.byzantine_nodes import EdgeLies
from node.bench.swarm.simulated_allreduce import SimulatedAllReduce
from node.bench.swarm.simulated_gossip import SimulatedGossip
from node.bench.swarm.simulated_node import SimulatedNode
from node.bench.swarm.simulated_secure import SimulatedSecure
from node.bench.swarm.traffic import Traffic
from p2ptrain.sync import ALLREDUCE, GOSSIP, SECURE, RoundResult, SyncConfig


class SimulatedAverager(Protocol):
    """Closes the rounds of a whole swarm."""

    def exchange(self, thetas: Mapping[str, torch.Tensor], round: int) -> Iterator[RoundResult]:
        """Carry out the exchange of the nodes' models, by name. What it does to each node, the honest ones first, is
        computed as it is asked for."""


def averager_of(
    config: SyncConfig,
    honest: Sequence[SimulatedNode],
    liars: Sequence[SimulatedNode],
    *,
    traffic: Traffic,
    edge_lies: EdgeLies | None,
) -> SimulatedAverager:
    """Build the counterpart of the strategy's averager. ValueError where it has none, or the strategy does not fit."""
    averager = config.spec().averager
    if averager == GOSSIP:
        return SimulatedGossip(honest, liars, traffic=traffic, edge_lies=edge_lies)
    if averager == ALLREDUCE:
        return SimulatedAllReduce(honest, liars, traffic=traffic)
    if averager == SECURE:
        return SimulatedSecure(honest, liars, traffic=traffic)
    raise ValueError(f"rounds that the averager {averager!r} closes cannot be simulated: p2ptrain up runs real nodes")
