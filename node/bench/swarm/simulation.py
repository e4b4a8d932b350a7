"""A swarm in one process: real trainers and real sync strategies, round by round, with nothing between them.

There is no network: every payload arrives, in order, at every neighbour, and no update is stale; every member of a
group (simulated_allreduce.py) is there in time. A refused payload ends the tracking of its sender, as in a real node.
Liars speak last in a round, knowing what the honest sent: an attack is as strong as it can be.
"""

import torch

from node.bench.swarm import byzantine_nodes
from node.bench.swarm.recalled_steps import RecalledSteps, StepsTaken
from node.bench.swarm.run_spec import RunSpec
from node.bench.swarm.simulated_averager import averager_of
from node.bench.swarm.simulated_node import SimulatedNode
from node.bench.swarm.traffic import Traffic
from p2ptrain.sync import TakesInnerState, build
from p2ptrain.tasks import Shard, Task
from p2ptrain.training import Trainer
from p2ptrain.training.anchor_optimizer import AnchorOptimizer
from p2ptrain.training.base import OptimizerPlace
from p2ptrain.training.ditto import DittoTrainer
from p2ptrain.training.late_average import LateAverage
from p2ptrain.training.train_config import TrainConfig


class Swarm:
    """Nodes that do their rounds at the same time. The liars are the last ones."""

    def __init__(self, recipe: RunSpec, task: Task) -> None:
        self.recipe = recipe
        self.traffic = Traffic()
        self.rounds = 0
        self.robust_rounds = 0
        self._spec = recipe.config.sync.spec()
        self._conspiracy = byzantine_nodes.Conspiracy(recipe)
        self._anchor_steps = StepsTaken()
        self.nodes = [self._node(index, task) for index in range(recipe.shape.nodes)]
        self.honest = self.nodes[: recipe.shape.nodes - recipe.shape.byzantine]
        self.liars = self.nodes[len(self.honest) :]
        for node, peers in zip(self.nodes, recipe.neighbours, strict=True):
            for peer in sorted(self.nodes[index].name for index in peers):
                node.tracked.add(peer)
                node.sync.track(peer, None)
        self._averager = averager_of(
            recipe.config.sync,
            self.honest,
            self.liars,
            traffic=self.traffic,
            edge_lies=self._conspiracy.edge_lies(),
        )

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
        steps, late = self.recipe.config.train.steps_in(self.rounds), self.recipe.shape.late_steps
        self._steps(steps - late)
        thetas = {node.name: node.trainer.vector() for node in self.nodes}
        for node in self.nodes:
            if isinstance(node.sync, TakesInnerState) and self._spec.wants:
                node.sync.take_inner_state(node.trainer.inner_state())
        for node in self.nodes:
            node.trainer.begin_round()
        results = self._averager.exchange(thetas, self.rounds)
        self._steps(late)
        distance, rounds = 0.0, self.recipe.config.train.rounds
        for index, (node, result) in enumerate(zip(self.nodes, results, strict=True)):
            node.trainer.correct(result.correction_d)
            if result.optimizer_state:
                node.trainer.take_optimizer_state(result.optimizer_state)
            node.anchor_d = result.anchor_d
            node.late.add(node.anchor_d, round=self.rounds + 1, rounds=rounds)
            if index < len(self.honest):
                distance += result.consensus_distance / len(self.honest)
                self.robust_rounds += result.robust
        self.rounds += 1
        return distance

    def mean_model(self) -> torch.Tensor:
        """Return the average of what is judged of the honest nodes, fp32 (d,)."""
        mean_d = self.honest[0].judged_d.clone()
        for count, node in enumerate(self.honest[1:], start=2):
            mean_d += (node.judged_d - mean_d) / count
        return mean_d

    def _node(self, index: int, task: Task) -> SimulatedNode:
        shape, name = self.recipe.shape, f"node{index:02d}"
        lies = index >= shape.nodes - shape.byzantine
        shard = Shard(index=index, count=shape.nodes)
        config, taught = self.recipe.config, self._conspiracy.task(task) if lies else task
        personal, wants = config.personal.find(), self._spec.wants
        trainer = (
            Trainer(taught, config.train, shard, tells=wants)
            if personal is None
            else DittoTrainer(taught, config.train, shard, tells=wants, personal=personal)
        )
        place = trainer.optimizer_place()
        sync = build(
            config.sync,
            trainer.vector(),
            own=name,
            judge=trainer.judge,
            rounds=config.train.rounds,
            largest_gamma=config.train.largest_gamma,
            steps=self._steps_of_anchor(config.train, place) if self._spec.steps_anchor else None,
            moments=place.moments if "moments" in self._spec.wants else (),
        )
        sync, late = self._conspiracy.member(sync, index) if lies else sync, LateAverage(config.train.late_average)
        return SimulatedNode(name, trainer, sync, trainer.vector(), late)

    def _steps_of_anchor(self, config: TrainConfig, place: OptimizerPlace) -> RecalledSteps:
        return RecalledSteps(AnchorOptimizer(config, place), self._anchor_steps)

    def _steps(self, count: int) -> None:
        for node in self.nodes:
            for _ in range(count):
                node.trainer.step(rate_factor=self._spec.local_rate)
