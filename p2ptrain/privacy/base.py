"""What a privatizer is: it bounds what one example, or one member's round, can do to a model, and hides it in noise.

Two mechanisms have the same arithmetic. With `example` (DP-SGD, 1607.00133) a contribution is one example's gradient
over all trained parameters, and every step is a release. With `update` (DP-FedAvg, 1710.06963) it is the whole move of
one round, and every round is a release:

    sum over contributions of  c min(1, C / ||c||)   +   N(0, (z C)^2)   in each coordinate

What is made of it afterwards (optimizer, compressor, strategy, checkpoint) tells nothing more about the data. The
neighbouring relation is that one contribution is added or left out: the sum then changes by at most C.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias, runtime_checkable

import torch

Unit: TypeAlias = Literal["nothing", "example", "update", "sum"]
"""What is protected: nothing; each example of the shard; all that the member learns in a round; the same, by noise that
is added under the masks of a secure sum."""


@dataclass(frozen=True, kw_only=True)
class Release:
    """So many noised sums as are about to be made, all alike: what an accountant has to know."""

    mechanism: str
    """The privatizer's name."""
    noise: float
    """Standard deviation of the noise over the clipping norm."""
    rate: float
    """Probability with which each contribution is in one sum, drawn apart for each (Poisson sampling)."""
    count: int
    """How many sums, at least 1."""


class BudgetSpentError(Exception):
    """The releases that were asked for would exceed the budget: none of them may be made."""


Spend: TypeAlias = Callable[[Release], None]
"""Called before releases are made, which are lost if it raises. It raises BudgetSpentError where they may not be made,
and has written down that they were when it returns."""


class NormalSource(Protocol):
    """Where noise comes from: numbers that nobody can foretell or draw again."""

    def normals(self, count: int) -> torch.Tensor:
        """Return `count` independent standard normal numbers, fp64 on the CPU."""


@runtime_checkable
class Privatizer(Protocol):
    """Options are keywords of the factory, with defaults: `noise` (z) and `clip` (C), except for `none`."""

    name: str
    unit: Unit

    def factors(self, norms_n: torch.Tensor) -> torch.Tensor:
        """Return by what each contribution is multiplied before they are summed, from their norms (n,). Those that are
        not finite have the factor 0."""

    def add_noise_(self, sum_d: torch.Tensor, source: NormalSource) -> None:
        """Add noise to the sum (d,) of the contributions, in place, before anything is made of it."""

    def release(self, *, rate: float, count: int) -> Release | None:
        """Return what `count` sums of contributions drawn with probability `rate` spend; None where nothing is
        protected."""
