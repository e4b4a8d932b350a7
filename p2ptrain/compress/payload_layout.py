"""How a payload lies in bytes, so that those of a vector's slices make that of the whole, and the other way round.

    payload = head, the same of every slice | section[0] of all values | section[1] of all values | ...

A codec that looks at a few values at a time lays its payload out so (`LaidOut`). One that looks at a whole vector, for
its largest values or its rank, does not.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Protocol, runtime_checkable

import torch

from p2ptrain.compress.base import Compressor, PayloadError
from p2ptrain.protocols import implements

Buffer = bytes | memoryview


@dataclass(frozen=True)
class PayloadLayout:
    """Of which bytes a payload is made."""

    unit: int
    """Slices begin at multiples of so many values; the last one may end anywhere."""
    sections: tuple[Callable[[int], int], ...]
    """How many bytes each section has for so many values, in the order in which they lie."""
    head: int = 0
    """Bytes before the sections."""

    def behind(self, head: int, unit: int = 1) -> "PayloadLayout":
        """Return that of a stage that writes `head` bytes before this payload, and turns `unit` values together."""
        return PayloadLayout(math.lcm(unit, self.unit), self.sections, head + self.head)

    def size(self, numel: int) -> int:
        """Return how many bytes a payload of so many values has."""
        return self.head + sum(section(numel) for section in self.sections)

    def cuts(self, numels: Sequence[int]) -> bool:
        """Return whether slices of so many values each begin where a payload can be cut."""
        return all(numel % self.unit == 0 for numel in numels[:-1])

    def joined(self, payloads: Sequence[Buffer], numels: Sequence[int]) -> bytes:
        """Return the payload of the vector whose slices, of so many values each, have these. ValueError where their
        heads are not the same."""
        head = bytes(payloads[0][: self.head])
        if any(bytes(payload[: self.head]) != head for payload in payloads):
            raise ValueError("the slices of a vector were encoded in different ways")
        pieces: list[Buffer] = [head]
        bounds = [self._bounds(numel) for numel in numels]
        for section in range(len(self.sections)):
            pieces += [
                memoryview(payload)[at[section] : at[section + 1]] for payload, at in zip(payloads, bounds, strict=True)
            ]
        return b"".join(pieces)

    def split(self, payload: Buffer, numels: Sequence[int]) -> list[bytes]:
        """Return the payloads of the slices, of so many values each, of a vector. PayloadError `wrong_shape` where it
        is no such vector's."""
        view = memoryview(payload).cast("B")
        whole = self._bounds(sum(numels))
        if view.nbytes != whole[-1]:
            raise PayloadError("wrong_shape", f"payload of {view.nbytes} bytes where the model needs {whole[-1]}")
        pieces: list[list[memoryview]] = [[view[: self.head]] for _ in numels]
        for section, start in zip(self.sections, whole, strict=False):
            ends = accumulate(map(section, numels), initial=start)
            for piece, (first, last) in zip(pieces, pairwise(ends), strict=True):
                piece.append(view[first:last])
        return [b"".join(piece) for piece in pieces]

    def _bounds(self, numel: int) -> list[int]:
        """Where each section begins, and the last one ends."""
        return list(accumulate((section(numel) for section in self.sections), initial=self.head))


@runtime_checkable
class LaidOut(Protocol):
    """A codec whose payloads may have a layout."""

    def payload_layout(self, payload: Buffer | None = None) -> PayloadLayout | None:
        """Return how `payload` lies in bytes, or the next one that is encoded; None where it cannot be cut. Raises
        PayloadError, as decoding does, for what it reads of it."""


@runtime_checkable
class EncodesSlices(Protocol):
    """A codec that should know what its vectors are slices of."""

    slice_of: int
    """How many values the whole vector has; 0: vectors are whole."""


def encode_slices_of(codec: Compressor, numel: int) -> None:
    """Have a codec, or that within stages, write of slices of a vector (numel,) the bits that it writes of the
    whole."""
    within: Compressor | None = codec
    while within is not None:
        if implements(within, EncodesSlices):
            within.slice_of = numel
        within = getattr(within, "inner", None)


def layout_of(codec: Compressor, payload: Buffer | None = None) -> PayloadLayout | None:
    """Return how a payload of `codec` lies in bytes (by default the next one); None where it cannot be cut."""
    return codec.payload_layout(payload) if implements(codec, LaidOut) else None


def size_of(codec: Compressor, numel: int) -> int:
    """Return how many bytes the next payload of so many values has: by its layout, or by encoding zeros."""
    layout = layout_of(codec)
    return len(codec.encode(torch.zeros(numel, dtype=torch.float32))) if layout is None else layout.size(numel)
