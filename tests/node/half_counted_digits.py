"""Digits of which every second one stands for a prediction that does not count, as tokens of a prompt do."""

import torch
from torch import nn
from torch.nn import functional

from p2ptrain.tasks.base import Batch, Shard
from p2ptrain.tasks.digits import Digits

NOT_COUNTED = -100


class HalfCountedDigits(Digits):
    def shard_eval_batches(self, shard: Shard, limit: int) -> list[Batch]:
        found = super().shard_eval_batches(shard, limit)
        return [
            (images, torch.where(torch.arange(len(labels)) % 2 == 0, labels, NOT_COUNTED)) for images, labels in found
        ]

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        return functional.cross_entropy(model(batch[0]), batch[1], ignore_index=NOT_COUNTED)

    def tokens(self, batch: Batch) -> int:
        return int((batch[1] != NOT_COUNTED).sum())


def create() -> HalfCountedDigits:
    return HalfCountedDigits("dirichlet", 1.0)
