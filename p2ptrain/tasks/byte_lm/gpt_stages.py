"""A GPT over bytes cut into stages, which ranks of a pipeline compute one after another.

The embedding's matrix is in two of them: the first looks its rows up, and the last makes logits by them. The ranks of
both have it, and add up its gradients.
"""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import nn

from p2ptrain.tasks.base import TaskError
from p2ptrain.tasks.byte_lm.gpt import ByteGPT


def cut_stages(model: ByteGPT, stages: int) -> list[nn.Module]:
    """Return the stages of `model`, with its blocks shared out evenly. TaskError where there are fewer blocks."""
    count = len(model.blocks)
    if stages > count:
        raise TaskError(
            f"{stages} stages of a pipeline want as many blocks, and the model has {count}: take a smaller "
            "site.pipeline, site.pipeline_schedule=1f1b, or a larger task.size"
        )
    firsts = [stage * count // stages for stage in range(stages + 1)]
    blocks = [list(model.blocks)[first:after] for first, after in pairwise(firsts)]
    return [GPTStage(model, own, first=own is blocks[0], last=own is blocks[-1]) for own in blocks]


class GPTStage(nn.Module):
    """Some blocks of a GPT, after the embedding in its first stage, and before norm and head in its last one."""

    def __init__(self, model: ByteGPT, blocks: Sequence[nn.Module], *, first: bool, last: bool) -> None:
        super().__init__()
        self.is_first = first
        self.pieces = 1 if first else model.pieces
        self.embedding = model.embedding if first or last else None
        self.blocks = nn.ModuleList(blocks)
        self.turns = model.turns
        self.norm = model.norm if last else None
        self.head = model.head if last else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Bytes (B, T) int64, or the stage before's (B, T / n, D), to (B, T / n, D), or to logits (B, T, 256). n: the
        pieces of the sequence."""
        cos_tk, sin_tk = self.turns(x.shape[1] * self.pieces, x.device)
        x_btd = self.embedding(x) if self.is_first and self.embedding is not None else x
        for block in self.blocks:
            x_btd = block(x_btd, cos_tk, sin_tk)
        if self.norm is None or self.head is None or self.embedding is None:
            return x_btd
        return self.head(self.norm(x_btd), self.embedding.weight)  # type: ignore[no-any-return]
