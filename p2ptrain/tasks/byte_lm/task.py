"""The byte-lm task: predict the next byte of a text. Loss in nats per byte, no tokenizer, any data."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from p2ptrain.tasks.base import OWN_SHARD, Batch, Shard, TaskError
from p2ptrain.tasks.byte_lm.corpus import open_corpus, open_domains
from p2ptrain.tasks.byte_lm.gpt import SIZES, VOCABULARY, ByteGPT
from p2ptrain.tasks.byte_lm.gpt_stages import cut_stages
from p2ptrain.tasks.byte_lm.split import DomainSplit, Split, Starts

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

EVAL_BATCH = 64
"""Windows in one evaluation batch: enough to fill a core, small enough for a laptop's memory at any model size."""

MAX_CONTEXT = 8192
"""Windows longer than this would hardly fit a block of the split."""


PARTITIONS = ("iid", "domain")


class ByteLM:
    """A GPT on bytes.

    Options: `size` (pico, nano, micro, small, base), `data` (a file, a folder, or None for the text of Python's own
    standard library), `context` (bytes that the model sees; None takes the size's own) and `partition`: `iid` deals
    blocks of all the text to the shards in turn, `domain` gives each shard one of the data folder's subfolders, or few,
    and holds out as much of each. TaskError on any that cannot be.
    """

    name = "byte-lm"
    metric = "nats per byte"
    units: ClassVar[Mapping[str, str]] = {OWN_SHARD: "nats per byte"}

    def __init__(
        self,
        size: str = "nano",
        data: str | Path | None = None,
        context: int | None = None,
        partition: str = "iid",
    ) -> None:
        if size not in SIZES:
            raise TaskError(f"byte-lm has no size {size!r}; there are: {', '.join(SIZES)}")
        self.size = SIZES[size]
        self.context = self.size.context if context is None else context
        if not 1 <= self.context <= MAX_CONTEXT:
            raise TaskError(f"context must be between 1 and {MAX_CONTEXT} bytes, not {self.context}")
        if partition not in PARTITIONS:
            raise TaskError(f"byte-lm has no partition {partition!r}; there are: {', '.join(PARTITIONS)}")
        self.partition = partition
        self.split: Split | DomainSplit
        if partition == "domain":
            self.corpus, domains = open_domains(data)
            self.split = DomainSplit.of(domains, self.context + 1)
        else:
            self.corpus = open_corpus(data)
            self.split = Split.of(len(self.corpus), self.context + 1)

    def build_model(self) -> nn.Module:
        """Return the GPT of this size, from torch's global RNG."""
        return ByteGPT(self.size)

    def share_tensors(self, model: nn.Module, mesh: "DeviceMesh") -> None:
        """Share the model's matrices out over the ranks of `mesh` (TensorParallel). TaskError where they do not fit."""
        from p2ptrain.tasks.byte_lm.tensor_parallel import (  # seconds that one process does not wait for
            check_divides,
            share_tensors,
        )

        assert isinstance(model, ByteGPT)
        check_divides(mesh.size(), self.size.heads, self.context)
        share_tensors(model, mesh)

    def cut_stages(self, model: nn.Module, stages: int) -> list[nn.Module]:
        """Cut the model into `stages` (PipelineParallel). TaskError where it has fewer blocks."""
        assert isinstance(model, ByteGPT)
        return cut_stages(model, stages)

    def train_batch(self, step: int, *, seed: int, shard: Shard, size: int) -> Batch:
        """`size` windows of the shard: inputs and targets, each int64 (size, context)."""
        rng = np.random.default_rng([seed, shard.index, step])
        return self._windows(self.split.draw(shard, size, rng))

    def example_count(self, shard: Shard) -> int:
        """Return how many windows the shard has that do not overlap."""
        return self.split.train_window_count(shard)

    def examples_at(self, shard: Shard, numbers: Sequence[int]) -> Batch:
        """Return these of them: inputs and targets, each int64 (n, context)."""
        return self._windows(self.split.train_windows(shard, np.array(numbers, np.int64)))

    def eval_batches(self, limit: int) -> list[Batch]:
        """Up to `limit` fixed windows of the held-out blocks."""
        return self._cut(self.split.held_out_windows(limit))

    def shard_eval_batches(self, shard: Shard, limit: int) -> list[Batch]:
        """Up to `limit` fixed windows of the held-out blocks of the shard's own domains; with the partition iid none,
        as all shards would have the same."""
        if shard.count == 1 or not isinstance(self.split, DomainSplit):
            return []
        return self._cut(self.split.held_out_of(shard, limit))

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """Mean cross entropy, in nats per byte."""
        tokens_bt, targets_bt = batch
        logits = model(tokens_bt).view(-1, VOCABULARY)
        return functional.cross_entropy(logits.float(), targets_bt.reshape(-1))

    def tokens(self, batch: Batch) -> int:
        """Bytes predicted."""
        return int(batch[1].numel())

    @torch.no_grad()
    def generate(self, model: nn.Module, prompt: str, *, length: int, temperature: float, seed: int) -> str:
        """`prompt` and `length` bytes more, sampled one by one; temperature 0 takes the likeliest.

        Bytes that are no UTF-8 become U+FFFD. TaskError on a negative temperature or length.
        """
        if temperature < 0 or length < 0:
            raise TaskError("temperature and length must not be negative")
        device = next(model.parameters()).device
        generator = torch.Generator().manual_seed(seed)
        # An empty prompt starts where a line does.
        text = list(prompt.encode()) or [ord("\n")]
        for _ in range(length):
            window = torch.tensor([text[-self.context :]], device=device)
            text.append(_sample(model(window)[0, -1].float().cpu(), temperature, generator))
        return bytes(text).decode(errors="replace")

    def _cut(self, starts: Starts) -> list[Batch]:
        return [self._windows(starts[at : at + EVAL_BATCH]) for at in range(0, len(starts), EVAL_BATCH)]

    def _windows(self, starts: Starts) -> Batch:
        places = starts[:, None] + np.arange(self.split.window)
        windows = torch.from_numpy(self.corpus[places].astype(np.int64))
        return windows[:, :-1], windows[:, 1:]


def _sample(logits: torch.Tensor, temperature: float, generator: torch.Generator) -> int:
    if temperature == 0:
        return int(logits.argmax())
    odds = torch.softmax(logits / temperature, dim=-1)
    return int(torch.multinomial(odds, 1, generator=generator))
