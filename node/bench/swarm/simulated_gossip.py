"""Gossip averaging of simulated nodes: everybody publishes, and every neighbour takes it at once."""

from collections.abc import Iterator, Mapping, Sequence

import torch

from node.bench.swarm.byzantine_nodes import EdgeLies
from node.bench.swarm.simulated_node import SimulatedNode
from node.bench.swarm.traffic import Traffic
from p2ptrain.compress import PayloadError
from p2ptrain.sync import Message, RoundResult
from p2ptrain.sync.mixing import metropolis_shares


class SimulatedGossip:
    """`edge_lies`: where liars tell each victim something else. ValueError when their strategies do not let them."""

    def __init__(
        self,
        honest: Sequence[SimulatedNode],
        liars: Sequence[SimulatedNode],
        *,
        traffic: Traffic,
        edge_lies: EdgeLies | None,
    ) -> None:
        self._honest, self._liars = honest, liars
        self._nodes = (*honest, *liars)
        self._traffic = traffic
        self._edge_lies = edge_lies
        if edge_lies is not None:
            for index, liar in enumerate(liars, start=len(honest)):
                edge_lies.open(index, liar.sync)

    def exchange(self, thetas: Mapping[str, torch.Tensor], round: int) -> Iterator[RoundResult]:
        """Publish and deliver this round's payloads."""
        self._publish(self._honest, thetas, round)
        if self._edge_lies is None:
            self._publish(self._liars, thetas, round)
        else:
            self._lie_to_each(self._edge_lies, thetas, round)
        degrees = {node.name: len(node.tracked) for node in self._nodes}
        return (self._aggregate(node, thetas[node.name], degrees, round) for node in self._nodes)

    def _aggregate(
        self, node: SimulatedNode, theta_d: torch.Tensor, degrees: Mapping[str, int], round: int
    ) -> RoundResult:
        shares = metropolis_shares(len(node.tracked), {peer: degrees[peer] for peer in node.tracked})
        return node.sync.aggregate(theta_d, dict.fromkeys(node.tracked, 0), round=round, shares=shares)

    def _publish(self, speakers: Sequence[SimulatedNode], thetas: Mapping[str, torch.Tensor], round: int) -> None:
        said = {node.name: node.sync.encode(thetas[node.name], round=round) for node in speakers}
        for speaker in speakers:
            hearers = [node for node in self._nodes if speaker.name in node.tracked]
            for node in hearers:
                self._deliver(node, speaker.name, said[speaker.name])
            if speaker in self._honest:
                self._traffic.count(len(said[speaker.name].payload), len(hearers))

    def _lie_to_each(self, edge_lies: EdgeLies, thetas: Mapping[str, torch.Tensor], round: int) -> None:
        """Liars, who tell each victim something else, tell each other nothing."""
        models_hd = torch.stack([thetas[node.name] for node in self._honest])
        for (liar, victim), message in edge_lies.messages(models_hd, round).items():
            if self._nodes[liar].name in self._nodes[victim].tracked:
                self._deliver(self._nodes[victim], self._nodes[liar].name, message)

    def _deliver(self, node: SimulatedNode, peer: str, message: Message) -> None:
        try:
            node.sync.apply(peer, message.codec, message.payload)
        except PayloadError as refusal:
            self._traffic.refused[refusal.reason] += 1
            node.sync.forget(peer)
            node.tracked.discard(peer)
