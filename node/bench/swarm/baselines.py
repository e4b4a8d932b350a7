"""What a swarm is measured against: one node alone, and all nodes as one (the exact mean gradient at every step)."""

from node.events.sent_bits import BITS, ring_all_reduce_bits
from p2ptrain.tasks import Batch, Shard, Task
from p2ptrain.tasks.base import optimizer_options
from p2ptrain.tasks.batches import joined
from p2ptrain.tasks.metrics import metric_units, own_metrics
from p2ptrain.training import TrainConfig, Trainer

FP32_BYTES = 4


class AllShards:
    """A task whose batch is every shard's batch: the mean loss over it has the mean of the nodes' gradients.

    So one trainer does what N nodes do that average exact gradients at every step, with the same data in the same
    order; only the order of the sum differs.
    """

    def __init__(self, task: Task, count: int) -> None:
        self._task, self._count = task, count
        self.name, self.metric = task.name, task.metric
        self.build_model, self.eval_batches = task.build_model, task.eval_batches
        self.loss, self.tokens = task.loss, task.tokens
        self.optimizer_options = optimizer_options(task)
        self.metrics, self.units = own_metrics(task), metric_units(task)

    def train_batch(self, step: int, *, seed: int, shard: Shard, size: int) -> Batch:
        """Return `size` examples of each shard, in the shards' order. `shard` is ignored."""
        shards = [Shard(index=index, count=self._count) for index in range(self._count)]
        batches = [self._task.train_batch(step, seed=seed, shard=each, size=size) for each in shards]
        return joined(batches)


def alone(task: Task, train: TrainConfig) -> Trainer:
    """Train one node with all the data."""
    return Trainer(task, train, Shard())


def synchronous(task: Task, train: TrainConfig, nodes: int) -> Trainer:
    """Train data parallel over `nodes`."""
    return Trainer(AllShards(task, nodes), train, Shard())


def ring_all_reduce_bytes(numel: int, nodes: int) -> float:
    """Return the bytes that one node sends in one fp32 ring all-reduce of `numel` parameters."""
    return ring_all_reduce_bits(nodes) / BITS * numel
