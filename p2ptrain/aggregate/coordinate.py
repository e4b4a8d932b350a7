"""What the coordinate-wise rules share: one pass over chunks of columns, each the mean of the values a `RowSelector`
leaves.

NaN counts as +infinity. Nothing is spent on that where there is none: minimum and maximum hand NaN on, and every input
has a way to the result, so a NaN shows in it. The sum of each chunk's results is looked at in the end; chunks where it
is not finite are done again with NaN replaced, and averaged in float64, since a sum of huge values may only have
overflowed. Liars who send NaN everywhere can so double the cost.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np
import torch

from p2ptrain import jit
from p2ptrain.aggregate.base import Columns, Rows
from p2ptrain.aggregate.columns import Work, checked, new_vector, parts, sweep, width_for
from p2ptrain.aggregate.compiled_network import MeanOfMiddle
from p2ptrain.aggregate.rule import Rule
from p2ptrain.aggregate.sorting_networks import Program

_CPU = torch.device("cpu")

OPERATIONS: dict[str, Callable[..., torch.Tensor]] = {"min": torch.minimum, "max": torch.maximum, "clamp": torch.clamp}
ON_CPU: dict[str, Callable[..., object]] = {
    "min": np.minimum,
    "max": np.maximum,
    "clamp": lambda x_c, low_c, high_c, out: np.minimum(np.maximum(x_c, low_c), high_c, out=out),  # out may be high
}
"""NumPy's, on the same memory: a call costs half, and a small model's rows cost little else."""


class RowSelector(Protocol):
    """Which of the n values of every column are averaged."""

    kept: int
    """How many."""
    scratch: int
    """Rows of scratch."""

    def __call__(self, x_nc: torch.Tensor, scratch_rc: torch.Tensor) -> torch.Tensor:
        """The values that stay, (kept, c): `x_nc` itself, or rows of the scratch."""


class CoordinateRule(Rule, ABC):
    """A rule that treats every column by itself."""

    def by_columns(self, rows: Rows) -> Columns:
        """Return what gives any slice of the aggregate: each column is one by itself."""
        self._check(rows)
        return lambda at: self._combine(rows.columns(at))

    def _combine(self, rows: Rows) -> torch.Tensor:
        return average(rows, self._selector(rows.n))

    @abstractmethod
    def _selector(self, n: int) -> RowSelector:
        """For so many rows, enough of them."""


class Everything:
    """The sieve that keeps all values."""

    scratch = 0

    def __init__(self, n: int) -> None:
        self.kept = n

    def __call__(self, x_nc: torch.Tensor, scratch_rc: torch.Tensor) -> torch.Tensor:
        """Return the values that stay of (n, c), as (kept, c)."""
        return x_nc


class Network:
    """The sieve that a network of minima and maxima makes."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.kept = program.left
        self.scratch = program.scratch
        self._steps = [(each.kind, each.of, program.n + each.out) for each in program.steps]

    def __call__(self, x_nc: torch.Tensor, scratch_rc: torch.Tensor) -> torch.Tensor:
        """Return the values that stay of (n, c), as (kept, c). One row at a time: see columns.GRAIN."""
        on_cpu = x_nc.device.type == "cpu"
        rows = (x_nc.numpy(), scratch_rc.numpy()) if on_cpu else (x_nc.unbind(0), scratch_rc.unbind(0))
        operations: Mapping[str, Callable[..., object]] = ON_CPU if on_cpu else OPERATIONS
        values = [row_c for matrix in rows for row_c in matrix]
        for kind, operands, out in self._steps:
            operations[kind](*[values[each] for each in operands], out=values[out])
        return scratch_rc[: self.kept]


def average(rows: Rows, selector: RowSelector) -> torch.Tensor:
    """Return the mean (d,) of what the sieve leaves of every column."""
    if 0 < rows.d <= width_for(rows, selector.scratch, _CPU):
        return _average_at_once(rows, selector)
    out_d = new_vector(rows)
    width = width_for(rows, selector.scratch, out_d.device)
    cut = parts(0, rows.d, width)
    sum_p = out_d.new_zeros(len(cut))
    sums = sum_p.unbind(0)
    averager = _averager(rows, selector, out_d, width)

    def worker() -> Work:
        average_columns = averager()

        def work(part: slice) -> None:
            out_c = out_d[part]
            average_columns(rows.read(part), out_c)
            torch.sum(out_c, dim=0, out=sums[part.start // width])

        return work

    sweep(rows, cut, worker, out_d.device)
    strange = (~torch.isfinite(sum_p)).nonzero().flatten().tolist()
    sweep(rows, [cut[index] for index in strange], lambda: _careful(rows, selector, out_d, width), out_d.device)
    return out_d


def _average_at_once(rows: Rows, selector: RowSelector) -> torch.Tensor:
    """`average` of so few columns that they are one chunk: they are read once, and nothing is made ready for more."""
    with torch.no_grad():
        x_nd = checked(rows.read(slice(0, rows.d)))
        out_d = torch.empty(rows.d, device=x_nd.device, dtype=torch.float32)
        _averager(rows, selector, out_d, rows.d)()(x_nd, out_d)
        if not math.isfinite(out_d.sum().item()):
            _careful(rows, selector, out_d, rows.d)(slice(0, rows.d))
    return out_d


Averager = Callable[[torch.Tensor, torch.Tensor], None]
"""Writes the means of what is left of the columns of (n, c) to (c,)."""


def _averager(rows: Rows, selector: RowSelector, out_d: torch.Tensor, width: int) -> Callable[[], Averager]:
    """One for each thread: compiled, where there is a compiler and enough to do, or else by torch's operations."""
    if isinstance(selector, Network) and out_d.device.type == "cpu" and rows.values >= jit.WORTH and jit.available():
        program = selector.program
        return lambda: MeanOfMiddle(program)
    return lambda: Operations(selector, out_d, width)


class Operations:
    """An averager that lets torch do one operation of the sieve after the other."""

    def __init__(self, selector: RowSelector, out_d: torch.Tensor, width: int) -> None:
        self._selector = selector
        self._scratch_rc = out_d.new_empty(selector.scratch, width)
        # A matrix-vector product reads all rows in one go, which neither torch.sum nor a chain of additions does. Its
        # weights are 1, or the inverse of a power of two, which rounds nothing either.
        self._is_power = selector.kept.bit_count() == 1
        self._weight_k = out_d.new_full((selector.kept,), 1 / selector.kept if self._is_power else 1.0)

    def __call__(self, x_nc: torch.Tensor, out_c: torch.Tensor) -> None:
        """Write the average of the kept values of (n, c) to `out_c`."""
        kept_kc = self._selector(x_nc, self._scratch_rc[:, : len(out_c)])
        torch.mv(kept_kc.T, self._weight_k, out=out_c)
        if not self._is_power:
            out_c.div_(self._selector.kept)


def _careful(rows: Rows, selector: RowSelector, out_d: torch.Tensor, width: int) -> Work:
    scratch_rc = out_d.new_empty(selector.scratch, width)

    def work(part: slice) -> None:
        out_c = out_d[part]
        x_nc = torch.stack([_without_nan(x_c) for x_c in rows.read(part).unbind(0)])
        kept_kc = selector(x_nc, scratch_rc[:, : len(out_c)])
        total_c = torch.zeros_like(out_c, dtype=torch.float64)
        for kept_c in kept_kc.unbind(0):
            total_c += kept_c
        out_c.copy_(total_c.div_(len(kept_kc)))

    return work


def _without_nan(x_c: torch.Tensor) -> torch.Tensor:
    return x_c.nan_to_num(nan=torch.inf, posinf=torch.inf, neginf=-torch.inf)
