"""Tasks whose models have more than trained parameters, for the tests of exports."""

import torch
from torch import nn
from torch.nn import functional

from p2ptrain.tasks import TaskError
from p2ptrain.tasks.base import Batch, Shard

WORDS, WIDTH = 12, 6


class Tied(nn.Module):
    """The head is the embedding; a scale is not trained, and two buffers change or stay."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.middle = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.embedding.weight
        self.scale = nn.Parameter(torch.full((WIDTH,), 0.5), requires_grad=False)
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mask", torch.tensor([1.0, 0.0] * (WIDTH // 2)))
        self.register_buffer("cache", torch.zeros(3), persistent=False)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.seen += len(words)
        return self.head(self.scale * self.mask * self.middle(self.embedding(words)))


class Adapter(nn.Module):
    """A frozen base that is much larger than what is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(WORDS, 400_000, bias=False).requires_grad_(False)
        self.head = nn.Linear(WORDS, WORDS)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.head(functional.one_hot(words, WORDS).float())


class Renamed(nn.Module):
    """Its state has another form than its parameters: a hook transposes."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WORDS, WORDS)
        self.register_state_dict_post_hook(self._turn)

    @staticmethod
    def _turn(module: nn.Module, state: dict[str, torch.Tensor], prefix: str, _: object) -> None:
        state[f"{prefix}inner.turned"] = state.pop(f"{prefix}inner.weight").T

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.inner(functional.one_hot(words, WORDS).float())


KINDS = {"tied": Tied, "adapter": Adapter, "renamed": Renamed}


class Words:
    """The next word is the last one and one more."""

    metric = "nats per word"

    def __init__(self, kind: str) -> None:
        self.name, self._kind = f"words-{kind}", kind

    def build_model(self) -> nn.Module:
        return KINDS[self._kind]()

    def train_batch(self, step: int, *, seed: int, shard: Shard, size: int) -> Batch:
        generator = torch.Generator().manual_seed(1000 * step + shard.index)
        words = torch.randint(0, WORDS, (size,), generator=generator)
        return words, (words + 1) % WORDS

    def eval_batches(self, limit: int) -> list[Batch]:
        words = torch.arange(WORDS)
        return [(words, (words + 1) % WORDS)]

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        return functional.cross_entropy(model(batch[0]), batch[1])

    def tokens(self, batch: Batch) -> int:
        return len(batch[1])


def create(kind: str = "tied") -> Words:
    if kind not in KINDS:
        raise TaskError(f"there is no kind {kind!r}")
    return Words(kind)
