"""The digits task: scikit-learn's 1,797 handwritten digits (8 x 8 pixels, packed with the library, no download).

Small enough to see a swarm learn within seconds, and the place to see unequal data: `partition` deals the training
examples to the shards evenly, by Dirichlet draws, or by label. Who holds what follows from a fixed seed, so that all
nodes agree without a word.
"""

import importlib.util
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn import functional

from p2ptrain.tasks.base import OWN_SHARD, Batch, Shard, TaskError

Indices = npt.NDArray[np.int64]

PARTITIONS = ("iid", "dirichlet", "label")
CLASSES = 10
PIXELS, SIDE = 64, 8
CONV_SIDE = 3
"""Of what two 3 x 3 convolutions leave of 8 x 8 pixels, the second with stride 2."""
MAX_PIXEL = 16.0

HIDDEN = 64
"""Width of the two hidden layers: 9k parameters, which reach about 97% of the held-out digits."""

PARTITION_SEED = 1797
"""Fixed, for the partition must be the same on every node, whatever seed each trains with."""

MIN_EXAMPLES = 1
"""A Dirichlet draw may leave a shard empty; it then takes examples from the largest, up to this many."""

MODELS = ("mlp", "wide", "conv")
WIDE = 160
"""Width of the one hidden layer of `wide`: 12k parameters."""
CHANNELS = 16
"""Of the two convolutions of `conv`: 5k parameters."""

EPSILON = 3e-2
"""A node has known its 180 digits of 1,437 by heart after six rounds. With 1e-8 eight nodes then end at twice the loss
of four; the larger this is the less, and from 1e-2 on it is nearly one for two to eight (docs/benchmarks.md)."""

HELD_OUT_SHARE = 0.2
EVAL_BATCH = 64


class Pool(NamedTuple):
    """Images fp32 (n, 64) in [0, 1] and labels int64 (n,)."""

    images: torch.Tensor
    labels: torch.Tensor


class Digits:
    """Classify handwritten digits with a small model.

    Options: `partition` (iid, dirichlet, label) and `alpha`, the Dirichlet concentration: the smaller, the more a shard
    has of few digits (0.3 is a common hard case; 100 is close to iid); `model`: mlp, wide (one hidden layer) or conv;
    `public`: how many of the digits to train on are everybody's public batch, and in no shard. TaskError on any that
    cannot be.
    """

    name = "digits"
    metric = "nats per digit"
    units: ClassVar[Mapping[str, str]] = {OWN_SHARD: "nats per digit"}
    optimizer_options: ClassVar[Mapping[str, Mapping[str, object]]] = {"adamw": {"epsilon": EPSILON}}
    classes = CLASSES
    input_range = (0.0, 1.0)

    def __init__(self, partition: str = "iid", alpha: float = 0.3, model: str = "mlp", public: int = 0) -> None:
        if partition not in PARTITIONS:
            raise TaskError(f"digits has no partition {partition!r}; there are: {', '.join(PARTITIONS)}")
        if not 0 < alpha < float("inf"):
            raise TaskError(f"alpha must be a positive number, not {alpha}")
        if model not in MODELS:
            raise TaskError(f"digits has no model {model!r}; there are: {', '.join(MODELS)}")
        self.partition, self.alpha, self._model = partition, alpha, model
        train, self.held_out = _pools()
        if not 0 <= public < len(train.labels):
            raise TaskError(f"public must be between 0 and {len(train.labels) - 1} digits, not {public}")
        self.public, self.train = Pool(*(each[:public] for each in train)), Pool(*(each[public:] for each in train))
        self._shards: dict[int, tuple[list[Indices], list[Indices]]] = {}  # by count; a node asks for one

    def build_model(self) -> nn.Module:
        """64 pixels to 10 logits, with LayerNorm (never BatchNorm: replicas with unequal data are averaged)."""
        if self._model == "wide":
            return nn.Sequential(nn.Linear(PIXELS, WIDE), nn.LayerNorm(WIDE), nn.GELU(), nn.Linear(WIDE, CLASSES))
        if self._model == "conv":
            left = CHANNELS * CONV_SIDE**2
            body = [nn.Unflatten(1, (1, SIDE, SIDE)), nn.Conv2d(1, CHANNELS, 3, padding=1), nn.GELU()]
            body += [nn.Conv2d(CHANNELS, CHANNELS, 3, stride=2), nn.Flatten(), nn.LayerNorm(left), nn.GELU()]
            return nn.Sequential(*body, nn.Linear(left, CLASSES))
        layers = [nn.Linear(PIXELS, HIDDEN), nn.LayerNorm(HIDDEN), nn.GELU()]
        layers += [nn.Linear(HIDDEN, HIDDEN), nn.LayerNorm(HIDDEN), nn.GELU()]
        return nn.Sequential(*layers, nn.Linear(HIDDEN, CLASSES))

    def train_batch(self, step: int, *, seed: int, shard: Shard, size: int) -> Batch:
        """`size` examples of the shard, drawn with replacement: fp32 (size, 64) and int64 (size,)."""
        mine = self.examples(shard)
        rng = np.random.default_rng([seed, shard.index, step])
        chosen = torch.from_numpy(mine[rng.integers(0, len(mine), size)])
        return self.train.images[chosen], self.train.labels[chosen]

    def example_count(self, shard: Shard) -> int:
        """Return how many digits the shard has."""
        return len(self.examples(shard))

    def examples_at(self, shard: Shard, numbers: Sequence[int]) -> Batch:
        """Return these digits of the shard: fp32 (n, 64) and int64 (n,)."""
        chosen = torch.from_numpy(self.examples(shard)[list(numbers)])
        return self.train.images[chosen], self.train.labels[chosen]

    def public_batch(self) -> Batch:
        """Return everybody's digits: fp32 (n, 64), and int64 (n,) zeros. TaskError where `public` is 0."""
        if not len(self.public.labels):
            raise TaskError("digits has no public batch: set task.public to a number of digits, such as 300")
        return self.public.images, torch.zeros_like(self.public.labels)

    def eval_batches(self, limit: int) -> list[Batch]:
        """Return the first `limit` of the held-out 20%, which are in random order."""
        return _cut(*self.held_out, limit)

    def shard_eval_batches(self, shard: Shard, limit: int) -> list[Batch]:
        """Return the first `limit` of the held-out digits that are the shard's, whose share of each digit it has in
        training. None with the partition iid, where all shards would have the same, nor where its shares come to
        none."""
        if self.partition == "iid" or shard.count == 1:
            return []
        mine = torch.from_numpy(self._dealt(shard)[1])
        return _cut(self.held_out.images[mine], self.held_out.labels[mine], limit)

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """Mean cross entropy, in nats per digit."""
        return functional.cross_entropy(model(batch[0]).float(), batch[1])

    def tokens(self, batch: Batch) -> int:
        """Digits classified."""
        return int(batch[1].numel())

    @torch.no_grad()
    def accuracy(self, model: nn.Module) -> float:
        """Share of the held-out digits that the model names rightly."""
        device = next(model.parameters()).device
        guesses = model(self.held_out.images.to(device)).argmax(dim=1).cpu()
        return float((guesses == self.held_out.labels).float().mean())

    def examples(self, shard: Shard) -> Indices:
        """Indices into `train` of the shard's examples. TaskError when there are more shards than examples."""
        return self._dealt(shard)[0]

    def _dealt(self, shard: Shard) -> tuple[Indices, Indices]:
        """The shard's training and held-out examples."""
        if shard.count > len(self.train.labels):
            raise TaskError(f"digits has {len(self.train.labels)} examples; that is too few for {shard.count} shards")
        if shard.count not in self._shards:
            self._shards = {shard.count: (self._deal(shard.count), self._deal_held_out(shard.count))}
        train, held_out = self._shards[shard.count]
        return train[shard.index % shard.count], held_out[shard.index % shard.count]

    def _deal(self, count: int) -> list[Indices]:
        rng = np.random.default_rng(PARTITION_SEED)
        order = rng.permutation(len(self.train.labels))
        return _fill_empty(self._parted(order, self.train.labels, count, rng))

    def _deal_held_out(self, count: int) -> list[Indices]:
        rng = np.random.default_rng(PARTITION_SEED)
        rng.permutation(len(self.train.labels))  # so that the shares that follow are those of `_deal`
        return self._parted(np.arange(len(self.held_out.labels)), self.held_out.labels, count, rng)

    def _parted(self, order: Indices, of: torch.Tensor, count: int, rng: np.random.Generator) -> list[Indices]:
        """Examples with the labels `of`, by shard."""
        labels = of.numpy()
        if self.partition == "iid":
            return [order[index::count] for index in range(count)]
        if self.partition == "label":
            return np.array_split(order[np.argsort(labels[order], kind="stable")], count)
        return _dirichlet(order, labels, count, self.alpha, rng)


def _cut(images: torch.Tensor, labels: torch.Tensor, limit: int) -> list[Batch]:
    end = min(limit, len(labels))
    spans = [slice(at, min(at + EVAL_BATCH, end)) for at in range(0, end, EVAL_BATCH)]
    return [(images[span], labels[span]) for span in spans]


def _dirichlet(
    order: Indices, labels: npt.NDArray[np.int64], count: int, alpha: float, rng: np.random.Generator
) -> list[Indices]:
    """Each class is shared out by its own draw of proportions (Hsu et al., 1909.06335)."""
    parts: list[list[Indices]] = [[] for _ in range(count)]
    for label in range(CLASSES):
        members = order[labels[order] == label]
        cuts = (np.cumsum(rng.dirichlet(np.full(count, alpha)))[:-1] * len(members)).astype(int)
        for part, piece in zip(parts, np.split(members, cuts), strict=True):
            part.append(piece)
    return [np.concatenate(part) for part in parts]


def _fill_empty(shards: list[Indices]) -> list[Indices]:
    for index, shard in enumerate(shards):
        if len(shard) < MIN_EXAMPLES:
            largest = max(range(len(shards)), key=lambda other: len(shards[other]))
            shards[index], shards[largest] = shards[largest][:MIN_EXAMPLES], shards[largest][MIN_EXAMPLES:]
    return shards


def all_digits() -> Pool:
    """Return every digit, held out or not, in a fixed order. TaskError where scikit-learn is not installed."""
    train, held_out = _pools()
    return Pool(torch.cat([held_out.images, train.images]), torch.cat([held_out.labels, train.labels]))


@cache
def _pools() -> tuple[Pool, Pool]:
    rows = np.loadtxt(_file(), delimiter=",")
    rows = rows[np.random.default_rng(PARTITION_SEED).permutation(len(rows))]
    images = torch.from_numpy(rows[:, :PIXELS]).float() / MAX_PIXEL
    labels = torch.from_numpy(rows[:, PIXELS]).long()
    held_out = int(len(rows) * HELD_OUT_SHARE)
    return Pool(images[held_out:], labels[held_out:]), Pool(images[:held_out], labels[:held_out])


def _file() -> Path:
    """What `sklearn.datasets.load_digits` reads: 64 pixels and a label a line. TaskError where it is not installed.

    The library itself, with all of SciPy, is not imported for it: that takes longer than a first round."""
    spec = importlib.util.find_spec("sklearn")
    if spec is None or spec.origin is None:
        raise TaskError("digits needs scikit-learn, which holds the pictures: pip install scikit-learn")
    return Path(spec.origin).with_name("datasets") / "data" / "digits.csv.gz"
