"""What a pre-aggregator is: a first stage, before a rule, that replaces the n rows by m mixtures of them.

A stage answers with a matrix of weights, from the rows' geometry alone. A geometric rule after it works on W G W^T and
reads nothing again; a coordinate-wise one reads the mixtures as they are made, chunk by chunk.
"""

from abc import ABC, abstractmethod
from typing import Protocol, runtime_checkable

import torch

from p2ptrain.aggregate.geometry import Geometry


@runtime_checkable
class PreAggregator(Protocol):
    """Built with the `f` that it must withstand."""

    name: str
    f: int
    looks: bool
    """Whether it looks at the rows' geometry."""
    from_origin: bool
    """Whether it measures norms, that is from zero: give it differences to a vector that you trust. `mix` is then given
    zero as one more point, the last, and may use it."""
    keeps_rows: bool
    """Whether mixture i is still row i's, so that row 0 stays the caller's own."""

    def minimum(self, after: int) -> int:
        """Return the fewest rows with which it keeps its promise and leaves `after` mixtures or more."""

    def breakdown(self, after: float) -> float:
        """Return the share of liars that it withstands together with a rule that withstands the share `after`."""

    def mix(self, n: int, geometry: Geometry | None) -> torch.Tensor:
        """Weights float64 (m, points), rows summing to 1, for n rows. `geometry` is there if it `looks`."""


class MixingStage(ABC):
    """A pre-aggregator's common half: it looks at distances between rows, and changes nothing about n and f."""

    name: str
    looks = True
    from_origin = False
    keeps_rows = False

    def __init__(self, *, f: int = 1) -> None:
        if f < 0:
            raise ValueError(f"{self.name}: f must not be negative, not {f}")
        self.f = f

    def minimum(self, after: int) -> int:
        """Return the fewest rows: 2f + 1, and as many as are needed after it."""
        return max(after, 2 * self.f + 1)

    def breakdown(self, after: float) -> float:
        """Return the share of liars withstood: the same as after it."""
        return after

    @abstractmethod
    def mix(self, n: int, geometry: Geometry | None) -> torch.Tensor:
        """Return weights float64 (m, points), rows summing to 1, for n rows."""
