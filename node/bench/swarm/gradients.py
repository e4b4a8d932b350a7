"""Nodes that average compressed gradients at every step, each told to all others: a LAN without stragglers.

All members reduce the same decoded numbers, so their models stay one: it is enough that one of them listens, and that
all take its result.
"""

from collections.abc import Mapping

import torch

from node.bench.swarm.run_spec import RunSpec
from node.bench.swarm.traffic import Traffic
from p2ptrain.sync import GradientStrategy, build_gradient
from p2ptrain.tasks import Shard, Task
from p2ptrain.training import Trainer


class GradientSwarm:
    """Simulates data-parallel training. ValueError with liars: every gradient is sent as it is."""

    def __init__(self, recipe: RunSpec, task: Task) -> None:
        if recipe.shape.byzantine:
            raise ValueError(f"{recipe.config.sync.strategy} is simulated with honest nodes only")
        count = recipe.shape.nodes
        shards = [Shard(index=index, count=count) for index in range(count)]
        self.trainers = [Trainer(task, recipe.config.train, shard) for shard in shards]
        self.names = [f"node{index:02d}" for index in range(count)]
        genesis_d = self.trainers[0].vector()
        self.members: Mapping[str, GradientStrategy] = {
            name: build_gradient(recipe.config.sync, genesis_d, name) for name in self.names
        }
        self.traffic = Traffic()
        self._step = 0

    def step(self) -> None:
        """Run one step: gradients, messages, the average, a step of every node."""
        listener, *others = self.names
        for name, trainer in zip(self.names, self.trainers, strict=True):
            message = self.members[name].encode(trainer.gradient()[1], step=self._step)
            self.traffic.count(len(message.payload), len(others))
            if name != listener:
                self.members[listener].apply(name, message.codec, message.payload)
        mean_d = self.members[listener].aggregate(others, step=self._step)
        for trainer in self.trainers:
            trainer.apply_gradient(mean_d)
        self._step += 1

    def model(self) -> torch.Tensor:
        """Return the model that every node has, fp32 (d,)."""
        return self.trainers[0].vector()
