"""Examples as rows of one length.

Rows are addressed: number r is found without those before it, so that a batch is a function of its address, and a node
that resumes at a step sees what it would have seen.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from p2ptrain.tasks.base import Shard, TaskError
from p2ptrain.tasks.hf.dealing import Dealing, Numbers, Part, drawn
from p2ptrain.tasks.hf.token_store import TokenStore

NOT_COUNTED: Final = -100
"""The label of a token that is not to be predicted, as torch's cross entropy and transformers have it."""


@dataclass(frozen=True, kw_only=True)
class RowConfig:
    """`length` tokens a row; `packing`: rows are cut out of the examples put one behind the other, else each example
    has rows of its own, filled up with `padding`."""

    length: int
    packing: bool
    padding: int


class TokenRows:
    """The rows of some examples, each `length` inputs and the tokens after them as targets."""

    def __init__(self, store: TokenStore, examples: Numbers, config: RowConfig) -> None:
        self._store, self._config = store, config
        self._starts = store.starts[examples]
        self._lengths = store.starts[examples + 1] - self._starts

    @cached_property
    def _ends(self) -> Numbers:
        """Packed: the tokens up to and with each example; else the rows."""
        per_example = self._lengths if self._config.packing else self._rows_each
        return np.cumsum(per_example, dtype=np.int64)

    @property
    def _rows_each(self) -> Numbers:
        # A token is a target once: row k of an example predicts its tokens k length + 1 to (k + 1) length.
        rows: Numbers = np.maximum(0, -(-(self._lengths - 1) // self._config.length))
        return rows

    def __len__(self) -> int:
        total = int(self._ends[-1]) if len(self._ends) else 0
        if not self._config.packing:
            return total
        # The rest at the end makes no whole row; where it is all there is, it is filled up.
        return max((total - 1) // self._config.length, min(1, max(0, total - 1)))

    def batch(self, rows: Numbers) -> tuple[torch.Tensor, torch.Tensor]:
        """Return inputs and targets, each int64 (len(rows), length); targets that are not trained on are
        NOT_COUNTED."""
        width = self._config.length + 1
        ids = np.full((len(rows), width), self._config.padding, np.int64)
        labels = np.full((len(rows), width), NOT_COUNTED, np.int64)
        for at, row in enumerate(rows.tolist()):
            spans = self._packed(row) if self._config.packing else [self._alone(row)]
            self._fill(ids[at], labels[at], spans)
        return torch.from_numpy(ids[:, :-1]).contiguous(), torch.from_numpy(labels[:, 1:]).contiguous()

    def _fill(
        self, ids: npt.NDArray[np.int64], labels: npt.NDArray[np.int64], spans: Sequence[tuple[int, int]]
    ) -> None:
        at = 0
        for start, end in spans:
            there = slice(at, at + end - start)
            ids[there] = self._store.tokens[start:end]
            labels[there] = np.where(self._store.trained[start:end], ids[there], NOT_COUNTED)
            at += end - start

    def _alone(self, row: int) -> tuple[int, int]:
        example = int(np.searchsorted(self._ends, row, side="right"))
        before = int(self._ends[example - 1]) if example else 0
        start = int(self._starts[example]) + (row - before) * self._config.length
        return start, min(start + self._config.length + 1, int(self._starts[example] + self._lengths[example]))

    def _packed(self, row: int) -> list[tuple[int, int]]:
        at, wanted = row * self._config.length, self._config.length + 1
        example = int(np.searchsorted(self._ends, at, side="right"))
        spans: list[tuple[int, int]] = []
        while wanted and example < len(self._ends):
            before = int(self._ends[example - 1]) if example else 0
            start = int(self._starts[example]) + at - before
            end = min(start + wanted, int(self._starts[example] + self._lengths[example]))
            spans.append((start, end))
            at, wanted, example = at + end - start, wanted - (end - start), example + 1
        return spans


class TokenSplit:
    """The rows of a store's examples, dealt. TaskError where there are too few."""

    def __init__(self, store: TokenStore, config: RowConfig) -> None:
        self.store, self._config = store, config
        self._dealing = Dealing(store.keys)
        self._dealt: dict[tuple[int, int, Part], TokenRows] = {}
        self.held_out = TokenRows(store, self._dealing.held_out(), config)
        """For all, the same on every node that has the same data."""
        if not len(self.held_out):
            raise TaskError(f"the data have {len(store.tokens)} tokens: too few to hold some out; give more")

    def rows(self, shard: Shard, part: Part = Part.TRAIN) -> TokenRows:
        """Return the shard's rows, to train on or held out for it. TaskError where it has none to train on."""
        place = (shard.index % shard.count, shard.count, part)
        found = self._dealt.get(place)
        if found is None:
            found = self._dealt[place] = TokenRows(self.store, self._dealing.of_shard(shard, part), self._config)
        if part is Part.TRAIN and not len(found):
            raise TaskError(f"shard {place[0]} of {shard.count} has no row to train on; give more data")
        return found

    def draw(self, step: int, *, seed: int, shard: Shard, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the rows of one batch: all rows of the shard once, in an order of the seed, then again in another."""
        rows = self.rows(shard)
        return rows.batch(drawn(step, seed=seed, index=shard.index, size=size, count=len(rows)))

    def spread(self, rows: TokenRows, limit: int) -> Numbers:
        """Return at most `limit` row numbers, evenly spaced."""
        count = min(limit, len(rows))
        return np.arange(count, dtype=np.int64) * len(rows) // max(1, count)
