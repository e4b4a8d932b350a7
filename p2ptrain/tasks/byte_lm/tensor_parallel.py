"""A GPT over bytes shared out by tensors: each rank has some heads of every block, and some of the MLP's columns.

Between the matrices each rank has a piece of the sequence (sequence parallelism, 2205.05198): norms and the residual
stream are computed once, and not by every rank. Inside, all ranks have the whole sequence.

The parameters stay those of one process, value for value. The one that needs care is `qkv`, whose rows are all heads'
queries, then their keys, then their values: a rank's heads are three runs of rows. Seen as (3, D, D) they are one block
of it, in the same order.
"""

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module
from torch.nn import functional

from p2ptrain.tasks.base import TaskError
from p2ptrain.tasks.byte_lm.gpt import Block, ByteGPT

SEQUENCE: int = 1
"""The dimension of (B, T, D) of which each rank has a piece between the matrices."""


def check_divides(ranks: int, heads: int, positions: int) -> None:
    """Raise TaskError where so many ranks cannot have equally many heads, and pieces of the sequence of one length."""
    if heads % ranks or positions % ranks:
        raise TaskError(
            f"site.tensor={ranks} does not divide the model's heads ({heads}) and its positions ({positions}): take "
            "another number of ranks, or another task.size or task.context"
        )


def share_tensors(model: ByteGPT, mesh: DeviceMesh) -> None:
    """Share `model` out over the ranks of `mesh`, in place."""
    for block in model.blocks:
        assert isinstance(block, Block)
        block.qkv = FusedColumns(block.qkv, 3, mesh)
        parallelize_module(
            block,
            mesh,
            {
                "attention_norm": SequenceParallel(sequence_dim=SEQUENCE),
                "project": RowwiseParallel(output_layouts=Shard(SEQUENCE)),
                "mlp_norm": SequenceParallel(sequence_dim=SEQUENCE),
                "up": ColwiseParallel(input_layouts=Shard(SEQUENCE)),
                "down": RowwiseParallel(output_layouts=Shard(SEQUENCE)),
            },
        )
    parallelize_module(model, mesh, {"norm": SequenceParallel(sequence_dim=SEQUENCE)})
    model.pieces = mesh.size()
    model.embedding = SharedEmbedding(model.embedding, mesh)
    model.head = SharedHead(mesh)


class FusedColumns(nn.Module):
    """A linear map whose rows are `fused` equal groups, of each of which this rank has its part. From a piece of the
    sequence to all of it."""

    def __init__(self, linear: nn.Module, fused: int, mesh: DeviceMesh) -> None:
        super().__init__()
        assert isinstance(linear, nn.Linear)
        self.mesh = mesh
        weight = linear.weight.detach().view(fused, -1, linear.in_features)
        self.weight = nn.Parameter(distribute_tensor(weight, mesh, [Shard(1)]))

    def forward(self, x_btd: DTensor) -> torch.Tensor:
        """(B, T / n, D) of each rank to (B, T, 3 D / n)."""
        whole_btd = x_btd.redistribute(placements=[Replicate()]).to_local(grad_placements=[Partial()])
        return functional.linear(whole_btd, _local(self.weight).flatten(0, 1))


class SharedEmbedding(nn.Module):
    """An embedding that every rank has whole, and of whose output each takes its piece of the sequence."""

    def __init__(self, embedding: nn.Module, mesh: DeviceMesh) -> None:
        super().__init__()
        assert isinstance(embedding, nn.Embedding)
        self.mesh = mesh
        self.weight = nn.Parameter(distribute_tensor(embedding.weight.detach(), mesh, [Replicate()]))

    def forward(self, tokens_bt: torch.Tensor) -> torch.Tensor:
        """Tokens (B, T) to (B, T / n, D) of each rank."""
        piece_bt = DTensor.from_local(tokens_bt, self.mesh, [Replicate()]).redistribute(placements=[Shard(SEQUENCE)])
        return functional.embedding(piece_bt.to_local(), _summed(self.weight))


class SharedHead(nn.Module):
    """Logits by a matrix that every rank has whole, each of its piece of the sequence; all get all of them."""

    def __init__(self, mesh: DeviceMesh) -> None:
        super().__init__()
        self.mesh = mesh

    def forward(self, x_btd: DTensor, weight: torch.Tensor) -> torch.Tensor:
        """(B, T / n, D) of each rank to (B, T, V)."""
        piece = functional.linear(x_btd.to_local(), _summed(weight))
        logits = DTensor.from_local(
            piece,
            self.mesh,
            [Shard(SEQUENCE)],
            run_check=False,
            shape=torch.Size((*x_btd.shape[:2], piece.shape[-1])),
            stride=(x_btd.shape[1] * piece.shape[-1], piece.shape[-1], 1),
        )
        return logits.redistribute(placements=[Replicate()]).to_local()


def _local(weight: torch.Tensor) -> torch.Tensor:
    assert isinstance(weight, DTensor)
    return weight.to_local()


def _summed(weight: torch.Tensor) -> torch.Tensor:
    """The values of a weight that all ranks have whole, whose gradient is the sum of what each comes to."""
    assert isinstance(weight, DTensor)
    return weight.to_local(grad_placements=[Partial()])
