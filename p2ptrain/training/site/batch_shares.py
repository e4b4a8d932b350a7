"""What one rank of a site computes of a batch: its share of the examples, whole or in micro-batches."""

from dataclasses import dataclass

import torch
from torch import nn

from p2ptrain.tasks.base import Batch, Task, whole_batches
from p2ptrain.tasks.batches import examples_in, pair_of, pieces, share_of
from p2ptrain.tasks.calling import TaskFaultError, calling


@dataclass(frozen=True)
class BatchShare:
    """A rank's share of a batch."""

    batch: Batch
    share: float
    """Of the batch's predictions."""
    predictions: float
    """Those that count here; shared out where all ranks compute the same."""


def batch_share(task: Task, batch: Batch, index: int, count: int, *, keeps_empty: bool = False) -> BatchShare:
    """Return share `index` of `count` of a batch. Where it cannot be cut, or nothing is predicted in this share, the
    rank computes the whole batch, and it counts as much as the ranks have of it together. `keeps_empty`: a share in
    which nothing is predicted stays as it is."""
    cut = None if count == 1 or whole_batches(task) else share_of(batch, index, count)
    with calling(task, "tokens"):
        whole = int(task.tokens(batch))
        here = 0 if cut is None else int(task.tokens(cut))
    if cut is None:
        return BatchShare(batch, 1 / count, whole / count)
    if not here:  # a mean over nothing is no number, and the ranks go through the model together
        return BatchShare(cut if keeps_empty else batch, 0.0, 0.0)
    return BatchShare(cut, here / max(1, whole), here)


def micro_batches(task: Task, batch: Batch, index: int, count: int, size: int) -> list[BatchShare]:
    """Return share `index` of `count` of a batch in pieces of `size` examples. TaskFaultError where the batch has not
    `size` examples for each of as many pieces."""
    own = batch if count == 1 else share_of(batch, index, count)
    cut = [] if own is None else pieces(own, size)
    if not cut or any(examples_in(each) != size for each in cut):
        raise TaskFaultError(
            f"the task {task.name} has made a batch of {examples_in(batch) or 'unlike tensors'}, which a pipeline "
            f"cannot cut into micro-batches of {size} examples",
            "return as many examples as are asked for, or leave site.pipeline at 1",
        )
    with calling(task, "tokens"):
        whole = max(1, int(task.tokens(batch)))
        counted = [(each, int(task.tokens(each))) for each in cut]
    return [BatchShare(each, here / whole, here) for each, here in counted]


def padded_examples(batch: Batch, ranks: int, multiple: int) -> int:
    """Return how many examples each of `ranks` evaluates of a batch: the most that one has, as a multiple of
    `multiple`."""
    examples = examples_in(batch) or 1
    most = -(-examples // ranks) if examples >= ranks else examples
    return -(-most // multiple) * multiple


def inputs_of(task: Task, batch: Batch) -> torch.Tensor:
    """Return what the first stage of a pipeline computes from. TaskFaultError where the batch is no pair of tensors."""
    pair = pair_of(batch)
    if pair is None:
        raise TaskFaultError(
            f"the task {task.name} has a batch that is no pair of tensors, inputs and targets",
            "return such pairs, or leave site.pipeline at 1",
        )
    return pair[0]


def padded(inputs: torch.Tensor, examples: int) -> torch.Tensor:
    """Return `inputs` with its last example repeated until there are as many as `examples`."""
    more = examples - len(inputs)
    return inputs if not more else torch.cat([inputs, inputs[-1:].expand(more, *inputs.shape[1:])])


class GivenOutput(nn.Module):
    """In place of a model that has computed already: returns what came of it."""

    def __init__(self, output: torch.Tensor, *, trains: bool) -> None:
        super().__init__()
        self.output = output
        self.train(trains)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """What the model has made of `inputs`."""
        return self.output
