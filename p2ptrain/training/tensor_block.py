"""The block of a tensor that one rank holds, and which of its values lie in a part of the whole.

A block's values in their own order are a rising sequence of the tensor's: so what a block has of any stretch of the
tensor is a stretch of the block. In the tensor that is some rows, as many values apart as the tensor's own rows
(`strips`).
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

import torch


class Strip(NamedTuple):
    """`rows` of `width` values each, the first of which begins at `start`, and each next one `step` further on."""

    start: int
    rows: int
    width: int
    step: int

    @property
    def numel(self) -> int:
        """How many values it has."""
        return self.rows * self.width

    def of(self, x_d: torch.Tensor, first: int) -> torch.Tensor:
        """Return the view (rows, width) of `x_d`, which has the values from `first` on."""
        return x_d.as_strided((self.rows, self.width), (self.step, 1), x_d.storage_offset() + self.start - first)


@dataclass(frozen=True)
class TensorBlock:
    """Where what a rank holds of a tensor lies in it."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def numel(self) -> int:
        """How many values it has."""
        return torch.Size(self.sizes).numel()

    def overlaps(self, other: "TensorBlock") -> bool:
        """Whether a value is in both."""
        places = zip(self.offsets, self.sizes, other.offsets, other.sizes, strict=True)
        return all(max(first, second) < min(first + one, second + two) for first, one, second, two in places)

    def of(self, whole: torch.Tensor) -> torch.Tensor:
        """Return the view of `whole` that it is."""
        at = tuple(slice(first, first + size) for first, size in zip(self.offsets, self.sizes, strict=True))
        return whole[at]

    def below(self, limit: int, shape: Sequence[int]) -> int:
        """Return how many of its values are among the first `limit` of a tensor of this shape."""
        if limit >= math.prod(shape):
            return self.numel
        count, rest, left = 0, limit, self.numel
        for first, size, step in zip(self.offsets, self.sizes, _steps(shape), strict=True):
            place, rest = divmod(rest, step)
            left = left // size if size else 0
            count += min(max(place - first, 0), size) * left
            if not first <= place < first + size:
                break
        return count

    def strips(self, start: int, stop: int, shape: Sequence[int]) -> Iterator[Strip]:
        """Yield where its values start..stop lie in a tensor of this shape, in order."""
        if start >= stop:
            return
        inner = next((at for at in reversed(range(len(shape))) if self.sizes[at] != shape[at]), 0)
        width = math.prod(self.sizes[inner:])
        many = self.sizes[inner - 1] if inner else 1
        step = _steps(shape)[inner - 1] if inner else width
        while start < stop:
            row, column = divmod(start, width)
            if column or stop - start < width:  # a part of a row
                end = min(stop, (row + 1) * width)
                yield Strip(self._row(row, inner, shape) + column, 1, end - start, step)
            else:
                rows = min((stop - start) // width, many - row % many)
                end = start + rows * width
                yield Strip(self._row(row, inner, shape), rows, width, step)
            start = end

    def _row(self, row: int, inner: int, shape: Sequence[int]) -> int:
        """Where in the tensor the block's row of this number begins, rows being indices of the dimensions before
        `inner`."""
        steps = _steps(shape)
        at = sum(first * step for first, step in zip(self.offsets, steps, strict=True))
        for size, step in zip(reversed(self.sizes[:inner]), reversed(steps[:inner]), strict=True):
            row, index = divmod(row, size)
            at += index * step
        return at


def _steps(shape: Sequence[int]) -> list[int]:
    """How many values apart neighbours in each dimension of a contiguous tensor are."""
    return [math.prod(shape[at + 1 :]) for at in range(len(shape))]


def are_whole(blocks: Iterable[TensorBlock], numel: int) -> bool:
    """Whether unlike blocks of a tensor of `numel` values are all of it, and none has a value of another."""
    filled = [block for block in blocks if block.numel]
    crossing = any(one.overlaps(other) for one, other in combinations(filled, 2))
    return not crossing and sum(block.numel for block in filled) == numel
