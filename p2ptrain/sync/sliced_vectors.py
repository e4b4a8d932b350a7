"""Vectors of which several processes hold a slice each: what stands for them where the whole is not.

`SlicedVector` has the shape and type of the vector (d,), and no values: the runtime hands it on, from the trainer to
the strategy and back, as any other. What needs values reads them a piece at a time (`pieces`), or says that it makes
the whole (`clone`). Any other operation raises, so that nobody works on a vector that is not there.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Final, NoReturn, Protocol

import torch

from p2ptrain.sync.vectors import ByteSource
from p2ptrain.tasks.base import TaskError

PIECE_NUMEL: Final = 1 << 18
"""Values that travel at a time where a vector is read or written: 1 MiB of fp32. Chosen: enough that a call costs
nothing beside them."""

LARGEST_UNIT: Final = 1 << 16
"""Slices of large models begin at multiples of this: the widest block that a codec may turn as one (rotated.py)."""

EVEN: Final = 16
"""Units in a slice, from which it may be one unit longer than another one. Chosen: that is a sixteenth."""


class LostSliceError(TaskError):
    """A process that holds a slice of the vectors cannot be reached, or failed: they are not whole any more."""


class SliceHolders(Protocol):
    """The processes that hold slices, as the one that leads sees them. One call at a time; any thread may call."""

    cuts: Sequence[slice]
    """What each holds of 0..d."""

    def each(self, name: str, *common: Any, own: Sequence[tuple[Any, ...]] | None = None) -> list[Any]:
        """Call a method of every `ModelSlice`, with its `own` arguments and then the common ones, and return what each
        returns. ValueError where one raises that; LostSliceError where one fails, or cannot be reached."""

    def one(self, index: int, name: str, *arguments: Any) -> Any:
        """Call a method of one of them. Raises as `each`."""


def cuts_of(numel: int, count: int, unit: int) -> list[slice]:
    """Return 0..numel in `count` slices or fewer, about equal, that begin at multiples of `unit`, or of more where they
    are long."""
    while unit < LARGEST_UNIT and 2 * unit * EVEN * count <= numel:
        unit *= 2
    units = -(-numel // unit)
    ends = [min(numel, index * units // count * unit) for index in range(count)] + [numel]
    return [slice(start, stop) for start, stop in pairwise(ends) if stop > start]


class SlicedBytes:
    """The bytes of a vector, little-endian, read from its slices: a `ByteSource`, valid until the vector changes."""

    def __init__(self, holders: SliceHolders, vector: str, itemsize: int) -> None:
        """`vector`: its name in each `ModelSlice`."""
        self._holders, self._vector, self._itemsize = holders, vector, itemsize

    def __len__(self) -> int:
        """Return how many bytes there are."""
        return int(self._holders.cuts[-1].stop) * self._itemsize

    def __getitem__(self, part: slice, /) -> bytes:
        """Return the bytes of a slice with explicit start and stop. Raises LostSliceError."""
        return b"".join(
            self._holders.one(index, "read", self._vector, start, stop)
            for index, start, stop in within(self._holders.cuts, part, self._itemsize)
        )

    def pieces(self) -> Iterator[bytes]:
        """Yield all of them in order, PIECE_NUMEL values at a time. Raises LostSliceError."""
        step = PIECE_NUMEL * self._itemsize
        for start in range(0, len(self), step):
            yield self[start : min(start + step, len(self))]


def within(cuts: Sequence[slice], part: slice, itemsize: int) -> Iterator[tuple[int, int, int]]:
    """Yield which bytes of which slices are the bytes `part` of a vector: number, start and stop in the slice."""
    for index, cut in enumerate(cuts):
        first, last = cut.start * itemsize, cut.stop * itemsize
        start, stop = max(first, part.start), min(last, part.stop)
        if start < stop:
            yield index, start - first, stop - first


class SlicedVector(torch.Tensor):
    """A vector fp32 (d,) that lies in slices under a name in each `ModelSlice`."""

    _bytes: SlicedBytes
    holders: SliceHolders
    key: str
    """What it is called there."""

    @classmethod
    def of(cls, holders: SliceHolders, name: str) -> "SlicedVector":
        """Return what stands for the vector of this name."""
        size, device = torch.Size([holders.cuts[-1].stop]), torch.device("cpu")
        made = torch.Tensor._make_wrapper_subclass(cls, size, dtype=torch.float32, device=device)
        assert isinstance(made, cls)
        made.holders, made.key, made._bytes = holders, name, SlicedBytes(holders, name, 4)
        return made

    def pieces(self) -> Iterator[bytes]:
        """Yield its bytes, little-endian. Raises LostSliceError."""
        return self._bytes.pieces()

    def clone(self, **options: object) -> torch.Tensor:
        """Return the whole: fp32 (d,), in this process."""
        whole = torch.empty(self.shape[0], dtype=torch.float32, device="cpu")
        raw = whole.numpy().view("u1")
        at = 0
        for piece in self.pieces():
            raw[at : at + len(piece)] = torch.frombuffer(bytearray(piece), dtype=torch.uint8).numpy()
            at += len(piece)
        return whole

    def aminmax(self, **options: object) -> tuple[torch.Tensor, torch.Tensor]:  # type: ignore[override]
        """Return the least and the largest value; NaN where one is."""
        low_n2 = torch.tensor(self.holders.each("extremes", self.key), device="cpu")
        return low_n2[:, 0].amin(), low_n2[:, 1].amax()

    def __repr__(self, **options: object) -> str:  # type: ignore[override]
        """Return what it is: its values are elsewhere."""
        return f"SlicedVector({self.key!r}, {self.shape[0]})"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch's own is a function that is disabled
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> NoReturn:
        """Raise TypeError."""
        raise TypeError(f"{function}: this vector is held in slices, and no process has it whole")


def deal(holders: SliceHolders, name: str, source: ByteSource, itemsize: int) -> None:
    """Put the bytes of a vector into its slices, under a name, a piece at a time. Raises LostSliceError."""
    holders.each("reserve", name, itemsize)
    step = PIECE_NUMEL * itemsize
    for first in range(0, len(source), step):
        part = slice(first, min(first + step, len(source)))
        data, at = bytes(source[part]), 0
        for index, start, stop in within(holders.cuts, part, itemsize):
            holders.one(index, "write", name, start, data[at : at + stop - start])
            at += stop - start
