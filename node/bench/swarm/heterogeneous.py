"""Tasks for tables of robustness: the nodes' data differ in a way that `digits` and byte-lm do not offer.

--task node.bench.swarm.heterogeneous:halved_digits     for the dumbbell: each half of the swarm has half of the classes
--task node.bench.swarm.heterogeneous:half_of_digits   every other digit; --partition as digits has it
--task node.bench.swarm.heterogeneous:lone_digit       the last shard alone has the nines: what a rule leaves out, shows
--task node.bench.swarm.heterogeneous:small_text        byte-lm of 33k parameters; also --partition dirichlet
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import numpy.typing as npt
from torch import nn

from p2ptrain.tasks.base import Batch, Shard, TaskError
from p2ptrain.tasks.byte_lm.gpt import GPTSize
from p2ptrain.tasks.byte_lm.split import Split, Starts
from p2ptrain.tasks.byte_lm.task import ByteLM
from p2ptrain.tasks.digits import CLASSES, Digits, Pool

Indices = npt.NDArray[np.int64]

SIZE = GPTSize(width=32, layers=2, heads=1, context=32)
"""33k parameters: a table of a hundred runs is made in minutes."""
BLOCK = 2048
"""Bytes: some fifty blocks in each stretch of a megabyte's text, so that shares can be uneven."""
STRETCHES = 10
"""As many as digits has classes."""
DEAL_SEED = 1797
"""Fixed, for the deal must be the same on every node, whatever seed each trains with."""
PARTITIONS = ("iid", "dirichlet")


class HalvedDigits(Digits):
    """Shards of even numbers have the digits 0 to 4, the others 5 to 9, dealt evenly within: as in the experiment of
    He, Karimireddy and Jaggi (2202.01545) with MNIST, where each side of a dumbbell is one half."""

    def examples(self, shard: Shard) -> Indices:
        """Return the indices of the examples of a shard. A single shard has all."""
        kinds = min(2, shard.count)
        number, kind = divmod(shard.index % shard.count, kinds)
        mine = np.flatnonzero(self.train.labels.numpy() * kinds // CLASSES == kind)
        return mine[number :: len(range(kind, shard.count, kinds))]


halved_digits = HalvedDigits


class LoneDigit(Digits):
    """The last shard has all of the nines beside its share of the others, which are dealt evenly. Its metric `nines` is
    the recall of the nines: 0 where nobody has learned what that shard alone holds."""

    lone = CLASSES - 1
    units: ClassVar[Mapping[str, str]] = {"nines": "recall"}

    def examples(self, shard: Shard) -> Indices:
        """Return the indices of the examples of a shard. A single shard has all."""
        labels = self.train.labels.numpy()
        index, others = shard.index % shard.count, np.flatnonzero(labels != self.lone)
        lone = np.flatnonzero(labels == self.lone) if index == shard.count - 1 else others[:0]
        return np.concatenate([lone, others[index :: shard.count]])

    def metrics(self, model: nn.Module, batch: Batch) -> dict[str, float]:
        """Return the recall of the nines of all held-out digits, whatever the batch."""
        device = next(model.parameters()).device
        nines = self.held_out.images[self.held_out.labels == self.lone].to(device)
        return {"nines": float((model(nines).argmax(dim=1) == self.lone).float().mean())}


lone_digit = LoneDigit


class HalfOfDigits(Digits):
    """Every other picture, from `half` (0 or 1) on: to tune on one half and report on the other. TaskError on options
    that cannot be."""

    def __init__(self, half: int = 0, partition: str = "iid", alpha: float = 0.3) -> None:
        if half not in (0, 1):
            raise TaskError(f"half must be 0 or 1, not {half}")
        super().__init__(partition=partition, alpha=alpha)
        self.train, self.held_out = (
            Pool(pool.images[half::2], pool.labels[half::2]) for pool in (self.train, self.held_out)
        )


half_of_digits = HalfOfDigits


class SmallText(ByteLM):
    """ByteLM of 33k parameters. TaskError on options that cannot be.

    A corpus is cut into stretches, in its own order: parts of a book, or files of a folder. `dirichlet` shares each
    stretch out among the shards by a draw of its own, as digits does with its classes; `iid` deals blocks in turn, as
    byte-lm does.
    """

    def __init__(self, data: str | Path | None = None, partition: str = "iid", alpha: float = 0.3) -> None:
        if partition not in PARTITIONS:
            raise TaskError(f"small_text has no partition {partition!r}; there are: {', '.join(PARTITIONS)}")
        if not 0 < alpha < float("inf"):
            raise TaskError(f"alpha must be a positive number, not {alpha}")
        super().__init__(data=data, context=SIZE.context)
        self.size = SIZE
        window = SIZE.context + 1
        block = min(Split.of(len(self.corpus), window).block, BLOCK)
        blocks = len(self.corpus) // block
        self.partition = partition
        if partition == "iid":
            self.split = Split(block=block, blocks=blocks, window=window)
        else:
            self.split = Heterogeneous(block=block, blocks=blocks, window=window, alpha=alpha)


small_text = SmallText


@dataclass(frozen=True, kw_only=True)
class Heterogeneous(Split):
    """A split whose stretches are shared out by Dirichlet draws."""

    alpha: float

    def train_blocks(self, shard: Shard) -> Starts:
        """Return the indices of the shard's blocks. A shard that the draws leave empty has the first block of all."""
        rng = np.random.default_rng(DEAL_SEED)
        train: Starts = np.setdiff1d(np.arange(self.blocks), self.held_out_blocks())
        mine: list[Starts] = []
        for stretch in np.array_split(train, STRETCHES):
            order = rng.permutation(stretch)
            shares = rng.dirichlet(np.full(shard.count, self.alpha))
            ends = np.rint(np.cumsum(shares) * len(order)).astype(np.int64)
            mine.append(np.split(order, ends[:-1])[shard.index % shard.count])
        blocks: Starts = np.concatenate(mine)
        return blocks if len(blocks) else train[:1]
