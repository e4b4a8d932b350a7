"""A swarm in one process: real trainers and real sync strategies, round by round, with nothing between them.

There is no network: every payload arrives, in order, at every neighbour, and no update is stale; the members of a group
all-reduce (simulated_allreduce.py) are there in time. A refused payload ends
the tracking of its sender, as in a real node. Liars speak last in a round, knowing what the honest sent: an attack is
as strong as it can be.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch

from node.bench.swarm import byzantine_nodes, simulated_allreduce
from node.bench.swarm.run_spec import RunSpec
from node.bench.swarm.traffic import Traffic
from p2ptrain import compress
from p2ptrain.sync import SyncStrategy, build
from p2ptrain.sync.base import Message, RoundResult
from p2ptrain.tasks import Shard, Task
from p2ptrain.training import Trainer


@dataclass(eq=False)
class SimulatedNode:
    """One simulated node: its trainer, its learning rule, and the neighbours that it still tracks."""

    name: str
    trainer: Trainer
    sync: SyncStrategy
    anchor_d: torch.Tensor
    """The outer parameters after the last round: what is judged."""
    tracked: set[str] = field(default_factory=set)


class Swarm:
    """Nodes that do their rounds at the same time. The liars are the last ones."""

    def __init__(self, recipe: RunSpec, task: Task) -> None:
        self.recipe = recipe
        self.traffic = Traffic()
        self.rounds = 0
        self.robust_rounds = 0
        self._conspiracy = byzantine_nodes.Conspiracy(recipe)
        self.nodes = [self._node(index, task) for index in range(recipe.shape.nodes)]
        self.honest = self.nodes[: recipe.shape.nodes - recipe.shape.byzantine]
        self.liars = self.nodes[len(self.honest) :]
        self._edge_lies = self._conspiracy.edge_lies()
        if self._edge_lies is not None:
            for index, liar in enumerate(self.liars, start=len(self.honest)):
                self._edge_lies.open(index, liar.sync)
        for node, peers in zip(self.nodes, recipe.neighbours, strict=True):
            for peer in sorted(self.nodes[index].name for index in peers):
                node.tracked.add(peer)
                node.sync.track(peer, None)
        self._members = simulated_allreduce.members({node.name: (node.sync, node.tracked) for node in self.nodes})

    @property
    def numel(self) -> int:
        """Return the number of the model's parameters."""
        return self.nodes[0].trainer.numel

    @property
    def robust_share(self) -> float:
        """Return the share of the honest nodes' rounds in which the aggregator could keep its promise."""
        return self.robust_rounds / max(1, self.rounds * len(self.honest))

    def round(self) -> float:
        """Run inner steps, exchange, late steps and aggregation. Returns the honest nodes' mean consensus distance."""
        steps, late = self.recipe.config.train.inner_steps, self.recipe.shape.late_steps
        self._steps(steps - late)
        thetas = {node.name: node.trainer.vector() for node in self.nodes}
        for node in self.nodes:
            node.trainer.begin_round()
        close = self._averaged(thetas) if self._members is None else self._met(self._members, thetas)
        self._steps(late)
        distance = 0.0
        for index, (node, result) in enumerate(zip(self.nodes, close(), strict=True)):
            node.trainer.correct(result.correction_d)
            node.anchor_d = result.anchor_d
            if index < len(self.honest):
                distance += result.consensus_distance / len(self.honest)
                self.robust_rounds += result.robust
        self.rounds += 1
        return distance

    def _averaged(self, thetas: dict[str, torch.Tensor]) -> Callable[[], Iterator[RoundResult]]:
        """Send and receive this round's payloads. Returns what then closes it, node by node."""
        self._exchange(self.honest, thetas)
        if self._edge_lies is None:
            self._exchange(self.liars, thetas)
        else:
            self._lie_to_each(self._edge_lies, thetas)
        return lambda: (
            node.sync.aggregate(thetas[node.name], dict.fromkeys(node.tracked, 0), round=self.rounds)
            for node in self.nodes
        )

    def _met(
        self, members: dict[str, simulated_allreduce.SimulatedMember], thetas: dict[str, torch.Tensor]
    ) -> Callable[[], Iterator[RoundResult]]:
        """The same for group all-reduce."""
        round_ = simulated_allreduce.exchange(members, thetas, self.rounds)
        for node in self.honest:
            self.traffic.exchange(len(round_.packed[node.name]), round_.sent[node.name])
        return lambda: (
            members[node.name].sync.settle(
                thetas[node.name], round_.groups[node.name], round_.parts[node.name], round=self.rounds
            )
            for node in self.nodes
        )

    def mean_model(self) -> torch.Tensor:
        """Return the honest nodes' average, fp32 (d,)."""
        mean_d = self.honest[0].anchor_d.clone()
        for count, node in enumerate(self.honest[1:], start=2):
            mean_d += (node.anchor_d - mean_d) / count
        return mean_d

    def _node(self, index: int, task: Task) -> SimulatedNode:
        shape, name = self.recipe.shape, f"node{index:02d}"
        lies = index >= shape.nodes - shape.byzantine
        shard = Shard(index=index, count=shape.nodes)
        trainer = Trainer(self._conspiracy.task(task) if lies else task, self.recipe.config.train, shard)
        sync = build(self.recipe.config.sync, trainer.vector(), own=name, judge=trainer.judge)
        return SimulatedNode(name, trainer, self._conspiracy.member(sync, index) if lies else sync, trainer.vector())

    def _steps(self, count: int) -> None:
        for node in self.nodes:
            for _ in range(count):
                node.trainer.step()

    def _exchange(self, speakers: Sequence[SimulatedNode], thetas: dict[str, torch.Tensor]) -> None:
        said = {node.name: node.sync.encode(thetas[node.name], round=self.rounds) for node in speakers}
        for speaker in speakers:
            hearers = [node for node in self.nodes if speaker.name in node.tracked]
            for node in hearers:
                self._deliver(node, speaker.name, said[speaker.name])
            if speaker in self.honest:
                self.traffic.count(len(said[speaker.name].payload), len(hearers))

    def _lie_to_each(self, edge_lies: byzantine_nodes.EdgeLies, thetas: dict[str, torch.Tensor]) -> None:
        """Liars, who tell each victim something else, tell each other nothing."""
        models_hd = torch.stack([thetas[node.name] for node in self.honest])
        for (liar, victim), message in edge_lies.messages(models_hd, self.rounds).items():
            if self.nodes[liar].name in self.nodes[victim].tracked:
                self._deliver(self.nodes[victim], self.nodes[liar].name, message)

    def _deliver(self, node: SimulatedNode, peer: str, message: Message) -> None:
        try:
            node.sync.apply(peer, message.codec, message.payload)
        except compress.PayloadError as refusal:
            self.traffic.refused[refusal.reason] += 1
            node.sync.forget(peer)
            node.tracked.discard(peer)
