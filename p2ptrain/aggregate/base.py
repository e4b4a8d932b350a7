"""What an aggregator is: n vectors in, one out, with a promise about how many of the n may lie.

A model is too big for its neighbours' vectors to be stacked: an aggregator reads `Rows`, a matrix that exists one chunk
of columns at a time. Coordinate-wise rules take one pass over the chunks; rules that look at whole vectors (distances,
norms) take two: one for the Gram matrix of the rows, which is all they need to know, one for the weighted sum.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch

from p2ptrain.protocols import implements


@dataclass(frozen=True)
class Rows:
    """An (n, d) fp32 matrix on the CPU or a CUDA device, read by columns, which are the same at every reading."""

    n: int
    d: int
    read: Callable[[slice], torch.Tensor]
    """The columns of a slice with explicit start and stop, as (n, width). The aggregator does not write to it.

    Several threads may read at once. Columns are asked for in chunks of at most 32,704; a reader that computes should
    do so row by row, since torch divides an operation on more than 32,768 values among threads of its own.
    """
    whole_d: int | None = None
    """The columns of the matrix of which these are a slice; None: these are all."""

    @property
    def values(self) -> int:
        """How many values the whole matrix has: what decides how it is worked on, so that slices do not differ."""
        return self.n * (self.d if self.whole_d is None else self.whole_d)

    def columns(self, at: slice) -> "Rows":
        """Return a slice of the columns, with explicit start and stop, as a matrix of its own."""
        first = at.start

        def read(part: slice) -> torch.Tensor:
            return self.read(slice(first + part.start, first + part.stop))

        return Rows(self.n, at.stop - first, read, self.d if self.whole_d is None else self.whole_d)

    @classmethod
    def of(cls, x_nd: torch.Tensor) -> "Rows":
        """Return a matrix in memory. ValueError unless it is fp32 (n, d) with n >= 1."""
        if x_nd.dim() != 2 or x_nd.shape[0] < 1 or x_nd.dtype != torch.float32:
            shape = tuple(x_nd.shape)
            raise ValueError(f"an aggregator needs vectors as rows, fp32 (n, d) with n >= 1, not {x_nd.dtype} {shape}")
        return cls(x_nd.shape[0], x_nd.shape[1], lambda part: x_nd[:, part])


@runtime_checkable
class Aggregator(Protocol):
    """A (robust) mean of n vectors. Built with the `f` that it must withstand."""

    name: str
    f: int
    """How many of the inputs may be Byzantine."""
    breakdown: float
    """The share of liars that it withstands as n grows; 0 for none. With few inputs `minimum()` says more."""
    own_first: bool
    """Whether row 0 is the caller's own vector, which is trusted (gossip rules); the others are in any order."""

    def minimum(self) -> int:
        """Return the fewest inputs with which the promise for `f` holds (2f + 1 for trimmed mean)."""

    def __call__(self, x_nd: torch.Tensor) -> torch.Tensor:
        """Aggregate fp32 (n, d) to (d,). ValueError when n is below `minimum()`: never a silent weaker rule."""

    def reduce(self, rows: Rows) -> torch.Tensor:
        """`__call__` for vectors that are read by chunks of columns; the same result, a few chunks of memory."""


@runtime_checkable
class Averages(Protocol):
    """An aggregator that takes an average, in each coordinate, of all vectors that it does not leave out there."""

    def averages(self, n: int) -> int:
        """Return how many of n vectors are in the average of each coordinate."""


Columns = Callable[[slice], torch.Tensor]
"""Gives a slice (with explicit start and stop) of an aggregate (d,): a tensor that may be overwritten."""


@runtime_checkable
class ByColumns(Protocol):
    """An aggregator whose result can be had a slice of columns at a time, so that no vector (d,) has to be made."""

    def by_columns(self, rows: Rows) -> Columns:
        """Look at the rows, as far as the rule has to see them whole, and return what gives any slice of what `reduce`
        returns, with the same bits. A slice reads no other columns. ValueError as `reduce`."""


def by_columns(rule: Aggregator, rows: Rows) -> Columns:
    """Return what gives any slice of `rule.reduce(rows)`; of a rule that is not `ByColumns` the whole is made here."""
    if implements(rule, ByColumns):
        return rule.by_columns(rows)
    whole_d = rule.reduce(rows)
    return lambda at: whole_d[at]


@runtime_checkable
class Weighted(Protocol):
    """An aggregator whose inputs may count differently, by staleness or by the weights of a gossip matrix."""

    def weighted(self, rows: Rows | torch.Tensor, weights: Sequence[float]) -> torch.Tensor:
        """`reduce` with one weight a row, positive or 0; only their ratios matter. Equal weights give `reduce`.

        ValueError for weights that are negative, not finite, all 0, or not n.
        """


@runtime_checkable
class Clips(Protocol):
    """An aggregator that lets a far vector pull less than in full, and can say whose."""

    @property
    def clipped(self) -> Sequence[int]:
        """The rows that the newest call did not follow in full, in ascending order; those that were lost among them."""
