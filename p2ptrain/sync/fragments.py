"""A part of the model that travels by itself: the whole, or one of P fragments that take turns.

The vector is cut into runs of about RUN parameters, and fragment p has the runs p, p + P, p + 2P, ... ("strided":
Streaming DiLoCo, 2501.18512): every fragment has a share of all depths, and blocks of a codec still lie in one layer.
Run i is [i d / n, (i + 1) d / n), n a multiple of P, so that the fragments' sizes differ by at most one a run.

On the wire a fragment is a stage in the codec's name, as `part0of4+int4`: it says which parameters a payload is of.
"""

import mmap
import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import numpy as np
import torch

from p2ptrain.compress.blocks import Floats
from p2ptrain.sync.vectors import Vector, values_of

RUN = 4096
"""Parameters in a row that stay together: four blocks of the block-wise codecs, one chunk of topk."""
FP32_BYTES = 4
MAX_FRAGMENTS = 64
"""More would make each travel so seldom that nothing is shared; and the wire's name must stay short."""

_NAME = re.compile(r"part(0|[1-9]\d?)of([1-9]\d?)\+(.+)", re.ASCII | re.DOTALL)


@dataclass(frozen=True)
class Fragment:
    """Fragment `index` of `count` of a vector of `total` parameters. `count` 1 is the whole, which costs no copy."""

    total: int
    index: int = 0
    count: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.count <= min(MAX_FRAGMENTS, self.total):
            raise ValueError(f"there is no part {self.index} of {self.count} in a model of {self.total} parameters")

    @property
    def prefix(self) -> str:
        """What stands before the codec's name."""
        return "" if self.count == 1 else f"part{self.index}of{self.count}+"

    @cached_property
    def slices(self) -> list[slice]:
        """The runs, in order."""
        runs = self.count * -(-self.total // (self.count * RUN))
        ends = [run * self.total // runs for run in range(runs + 1)]
        return [slice(ends[run], ends[run + 1]) for run in range(self.index, runs, self.count)]

    @cached_property
    def numel(self) -> int:
        """How many parameters it has."""
        return sum(run.stop - run.start for run in self.slices)

    @cached_property
    def _begins(self) -> list[int]:
        """Where each run begins in the part."""
        return list(accumulate((run.stop - run.start for run in self.slices), initial=0))[:-1]

    def within(self, part: slice) -> Iterator[tuple[slice, slice]]:
        """Yield where a slice of this part's values lies in the model, run by run, and where in the slice itself."""
        if self.count == 1:
            yield part, slice(0, part.stop - part.start)
            return
        at = part.start
        for index in range(bisect_right(self._begins, at) - 1, len(self.slices)):
            if at >= part.stop:
                return
            run, begin = self.slices[index], self._begins[index]
            stop = min(part.stop, begin + run.stop - run.start)
            yield slice(run.start + at - begin, run.start + stop - begin), slice(at - part.start, stop - part.start)
            at = stop

    def of(self, x_d: torch.Tensor) -> torch.Tensor:
        """This part's values (p,); of the whole, `x_d` itself."""
        return x_d if self.count == 1 else torch.cat([x_d[run] for run in self.slices])

    def read(self, x_d: Vector, at: slice) -> torch.Tensor:
        """Return a slice of this part's values as fp32: a view, where `x_d` is fp32 in memory and this the whole; else
        a copy."""
        return torch.from_numpy(self.values(x_d, at))

    def values(self, x_d: Vector, at: slice) -> Floats:
        """`read` as an array."""
        if self.count == 1:
            return values_of(x_d, at)
        value_p = np.empty(at.stop - at.start, dtype=np.float32)
        for in_model, in_part in self.within(at):
            value_p[in_part] = values_of(x_d, in_model)
        return value_p

    def write_(self, x_d: torch.Tensor, at: slice, value_p: torch.Tensor) -> None:
        """Set a slice of this part's values in `x_d` fp32 (d,), unless `value_p` is a view of them."""
        if self.count == 1:
            if value_p.data_ptr() != x_d[at].data_ptr():
                x_d[at] = value_p
            return
        x, value = x_d.numpy(), value_p.numpy()
        for in_model, in_part in self.within(at):
            x[in_model] = value[in_part]

    def put(self, x_d: torch.Tensor, x_p: torch.Tensor) -> torch.Tensor:
        """Return a vector like `x_d` with `x_p` in this part's place; of the whole, `x_p` itself."""
        if self.count == 1:
            return x_p
        out_d, start = x_d.clone(), 0
        for run in self.slices:
            width = run.stop - run.start
            out_d[run] = x_p[start : start + width]
            start += width
        return out_d


def zeros_but_for_a_part(numel: int) -> torch.Tensor:
    """Return zeros fp32 (numel,) of which a part is to be set: pages that nobody writes to take no memory. Pages of the
    usual size: a huge one has runs of all parts."""
    memory = mmap.mmap(-1, FP32_BYTES * numel, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    return torch.from_numpy(np.frombuffer(memory, dtype=np.float32))


def parse(name: str, total: int) -> tuple[Fragment, str]:
    """Return the part that a wire name speaks of, and the codec's own name. ValueError when there is no such part."""
    match = _NAME.fullmatch(name)
    if match is None:
        return Fragment(total), name
    index, count, codec = match.groups()
    if count == "1":
        raise ValueError("the whole has no prefix")
    return Fragment(total, int(index), int(count)), codec
