"""Which bytes are whose: a corpus is cut into blocks; every 16th is held out, the rest are dealt to the shards.

Only positions decide, so that every node with the same bytes holds out the same blocks without a word being said, and
a held-out block never stands in anyone's shard. Blocks are small against a corpus, so that both sides are drawn from
all over it, and large against a window, so that few windows are lost at their edges: no window crosses one.

With domains, each domain is cut so by itself. A shard reads few domains, or one; what is held out is all domains alike.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from p2ptrain.tasks.base import Shard, TaskError

Starts = npt.NDArray[np.int64]
"""Positions in the corpus at which windows begin."""

BLOCK = 16 * 1024
"""Bytes of a block: some 400 lines of text, and at most 0.4% of windows lost at its edge for a window of 65."""

HELD_OUT_EVERY = 16
"""One block in 16, 6%, is for evaluation: a megabyte gives 64 KiB, a thousand windows of 64."""

WANTED_BLOCKS = 64
"""A corpus under a megabyte is cut into this many smaller blocks, so that four are held out."""


@dataclass(frozen=True, kw_only=True)
class Split:
    """`blocks` blocks of `block` bytes, for windows of `window` bytes."""

    block: int
    blocks: int
    window: int

    @classmethod
    def of(cls, corpus_bytes: int, window: int) -> "Split":
        """Cut a corpus of so many bytes. TaskError when it is too small to hold anything out."""
        block = max(window, min(BLOCK, corpus_bytes // WANTED_BLOCKS))
        blocks = corpus_bytes // block
        if blocks < HELD_OUT_EVERY:
            need = HELD_OUT_EVERY * window
            raise TaskError(
                f"the data has {corpus_bytes} bytes; a context of {window - 1} needs at least {need}: "
                "give more text, or a smaller context"
            )
        return cls(block=block, blocks=blocks, window=window)

    def held_out_blocks(self) -> Starts:
        """Indices of the blocks that nobody trains on."""
        return np.arange(HELD_OUT_EVERY - 1, self.blocks, HELD_OUT_EVERY)

    def train_blocks(self, shard: Shard) -> Starts:
        """Indices of the shard's blocks: the train blocks i with i % count = index.

        Shards are disjoint as long as there are as many train blocks as shards; past that, one shares another's.
        """
        every: Starts = np.arange(self.blocks)
        train: Starts = every[every % HELD_OUT_EVERY != HELD_OUT_EVERY - 1]
        mine: Starts = train[shard.index % min(shard.count, len(train)) :: shard.count]
        return mine

    def draw(self, shard: Shard, size: int, rng: np.random.Generator) -> Starts:
        """`size` windows of the shard, each block and each place in it alike."""
        mine = self.train_blocks(shard)
        offsets = rng.integers(0, self.block - self.window + 1, size)
        return mine[rng.integers(0, len(mine), size)] * self.block + offsets

    def train_window_count(self, shard: Shard) -> int:
        """Return how many windows the shard's blocks have that do not overlap: every byte is in one at most."""
        return len(self.train_blocks(shard)) * (self.block // self.window)

    def train_windows(self, shard: Shard, numbers: Starts) -> Starts:
        """Return where these of them begin."""
        blocks, places = np.divmod(numbers, self.block // self.window)
        starts: Starts = self.train_blocks(shard)[blocks] * self.block + places * self.window
        return starts

    def held_out_windows(self, limit: int) -> Starts:
        """At most `limit` windows of the held-out blocks that do not overlap, evenly spaced over them."""
        per_block = self.block // self.window
        starts = self.held_out_blocks()[:, None] * self.block + np.arange(per_block) * self.window
        every = starts.reshape(-1)
        count = min(limit, len(every))
        return every[np.arange(count) * len(every) // max(1, count)]


@dataclass(frozen=True, kw_only=True)
class DomainSplit:
    """A corpus of domains that stand one after another: each has a split of its own, and begins at its offset."""

    splits: tuple[Split, ...]
    offsets: tuple[int, ...]
    """Bytes."""
    window: int

    @classmethod
    def of(cls, domains: Sequence[tuple[str, int]], window: int) -> "DomainSplit":
        """Cut domains of so many bytes, by name. TaskError when one is too small to hold anything out."""
        splits = []
        for name, size in domains:
            try:
                splits.append(Split.of(size, window))
            except TaskError as error:
                raise TaskError(f"domain {name!r}: {error}") from error
        ends = np.cumsum([0, *(size for _, size in domains)])
        return cls(splits=tuple(splits), offsets=tuple(map(int, ends[:-1])), window=window)

    def domains_of(self, shard: Shard) -> list[tuple[int, Shard]]:
        """Return the domains of a shard, each with the part of it that is this shard's.

        Shards are dealt to domains in turn: with 8 shards and 6 domains the first two domains have two shards each,
        and with fewer shards than domains a shard has several whole domains.
        """
        count = len(self.splits)
        place = shard.index % shard.count
        if shard.count <= count:
            return [(domain, Shard()) for domain in range(place, count, shard.count)]
        domain = place % count
        return [(domain, Shard(index=place // count, count=len(range(domain, shard.count, count))))]

    def draw(self, shard: Shard, size: int, rng: np.random.Generator) -> Starts:
        """`size` windows of the shard: each of its domains alike, whatever their sizes."""
        mine = self.domains_of(shard)
        chosen = rng.integers(0, len(mine), size)
        starts = np.empty(size, np.int64)
        for number, (domain, part) in enumerate(mine):
            here = chosen == number
            starts[here] = self.offsets[domain] + self.splits[domain].draw(part, int(here.sum()), rng)
        return starts

    def train_window_count(self, shard: Shard) -> int:
        """Return how many windows the shard's domains have that do not overlap."""
        return sum(self.splits[domain].train_window_count(part) for domain, part in self.domains_of(shard))

    def train_windows(self, shard: Shard, numbers: Starts) -> Starts:
        """Return where these of them begin, those of one domain after those of another."""
        starts, first = np.empty(len(numbers), np.int64), 0
        for domain, part in self.domains_of(shard):
            split = self.splits[domain]
            count = split.train_window_count(part)
            here = (numbers >= first) & (numbers < first + count)
            starts[here] = self.offsets[domain] + split.train_windows(part, numbers[here] - first)
            first += count
        return starts

    def held_out_windows(self, limit: int) -> Starts:
        """At most `limit` windows, as many of each domain (one more of the first, where they do not divide)."""
        return self._held_out(range(len(self.splits)), limit)

    def held_out_of(self, shard: Shard, limit: int) -> Starts:
        """Return the same of the shard's domains alone. Shards that share a domain share what it holds out."""
        return self._held_out([domain for domain, _ in self.domains_of(shard)], limit)

    def _held_out(self, domains: Sequence[int], limit: int) -> Starts:
        count = len(domains)
        smallest = min(len(self.splits[domain].held_out_windows(limit)) for domain in domains)
        limit = min(limit, smallest * count)
        shares = [len(range(place, limit, count)) for place in range(count)]
        return np.concatenate(
            [
                self.offsets[domain] + self.splits[domain].held_out_windows(share)
                for domain, share in zip(domains, shares, strict=True)
            ]
        )
