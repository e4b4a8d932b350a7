"""Stages that turn each block of a vector by an orthonormal matrix, which keeps lengths, and encode what comes out.

    payload = shift         1 byte: 0, or 32 when the vector was divided by 2^32 so that no sum overflows
              header        the member's own
              inner payload of the d turned values

A vector is cut into blocks of 2^k; the rest is cut into smaller powers of two, the largest first (904 is 512 + 256 +
128 + 8), so that nothing is padded and the inner codec sees exactly d values.

Turning back decides the receivers' bits, so it is additions, subtractions and multiplications by tabled numbers, each
element-wise and in the order written here. A block of 2^k is worked on as a matrix of 2^floor(k/2) columns, first along
the columns, then along the rows, with many blocks side by side as lanes.
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch

from p2ptrain.compress.base import Compressor, PayloadError
from p2ptrain.compress.blocks import CHUNK_NUMEL, FLOAT_MAX, Floats, check_vector
from p2ptrain.compress.payload_layout import Buffer, PayloadLayout, layout_of
from p2ptrain.compress.pool import for_each
from p2ptrain.compress.rows import scratch
from p2ptrain.compress.stage import Stage, cut_header

Transform = Callable[[Floats, Floats], tuple[Floats, Floats]]
"""Turns the columns of its first argument (n, lanes); may use both. The result, and the other one of the two."""

SHIFT = 32
LARGE = 2.0**90
"""Vectors with larger values are divided by 2^SHIFT first: then sums over a block of 2^16 stay finite, both ways."""

PADDING = 16
"""Idle lanes at the end of a row: without them rows are powers of two apart, and share a few sets of the L1 cache."""


class Piece(NamedTuple):
    """`rows` blocks of `width` parameters from `start`."""

    start: int
    rows: int
    width: int

    def of(self, x_d: Floats) -> Floats:
        """Its view (rows, width) of a flat vector."""
        return x_d[self.start : self.start + self.rows * self.width].reshape(self.rows, self.width)


def pieces(numel: int, block: int) -> list[Piece]:
    """Whole blocks in chunks of about CHUNK_NUMEL, then the rest as falling powers of two."""
    whole, step = numel // block, max(1, CHUNK_NUMEL // block)
    cut = [Piece(row * block, min(step, whole - row), block) for row in range(0, whole, step)]
    at, width = whole * block, block
    while at < numel:
        width //= 2
        if width <= numel - at:
            cut.append(Piece(at, 1, width))
            at += width
    return cut


class BlockTransform(Stage):
    """Cost beside the inner codec's: a vector and a few chunks of memory, O(d log block) time."""

    header_bytes: int = 0
    block: int

    def encode(self, x_d: torch.Tensor) -> bytes:
        """Encode an fp32 vector (d,)."""
        value_d = check_vector(x_d)
        shift = SHIFT if LARGE <= max(-value_d.min(), value_d.max()) < np.inf else 0
        if shift:
            value_d = value_d * np.float32(2.0**-SHIFT)
        turned_d = np.empty_like(value_d)
        for_each(lambda piece: self.forward(piece.of(value_d), piece.of(turned_d)), pieces(value_d.size, self.block))
        return bytes([shift]) + self.header() + self.inner.encode(torch.from_numpy(turned_d))

    def within(self, payload: bytes | memoryview) -> memoryview:
        """Return what follows the header."""
        return cut_header(payload, 1 + self.header_bytes)[1]

    def decode(self, payload: bytes | memoryview, numel: int) -> torch.Tensor:
        """Decode to fp32 (numel,). Raises PayloadError."""
        header, rest = cut_header(payload, 1 + self.header_bytes)
        reader = self.reader(header[1:])
        if header[0] not in (0, SHIFT):
            raise PayloadError("malformed", f"a shift of {header[0]}")
        value_d = self.inner.decode(rest, numel).numpy()

        def turn_back(piece: Piece) -> None:
            value_rw = piece.of(value_d)
            reader.backward(value_rw, value_rw)
            if header[0]:
                np.clip(value_rw * np.float32(2.0**SHIFT), -FLOAT_MAX, FLOAT_MAX, out=value_rw)
            if not (np.isfinite(value_rw.min()) and np.isfinite(value_rw.max())):
                raise PayloadError("nonfinite", "a block's sum is not a finite number")

        for_each(turn_back, pieces(numel, reader.block))
        return torch.from_numpy(value_d)

    def payload_layout(self, payload: Buffer | None = None) -> PayloadLayout | None:
        """Return that of the codec within, behind the head. Vectors beyond LARGE have another head than others."""
        block, rest = self.block, None
        if payload is not None:
            header, rest = cut_header(payload, 1 + self.header_bytes)
            block = self.reader(header[1:]).block
        within = layout_of(self.inner, rest)
        return None if within is None else within.behind(1 + self.header_bytes, block)

    def header(self) -> bytes:
        """Return what a reader must know: `header_bytes` of it."""
        return b""

    def reader(self, header: memoryview) -> "BlockTransform":
        """Return the transform of which `header` speaks. PayloadError `malformed` when it is none."""
        return self

    @abstractmethod
    def forward(self, x_rw: Floats, y_rw: Floats) -> None:
        """Write the turned rows of `x_rw` to `y_rw`."""

    @abstractmethod
    def backward(self, y_rw: Floats, x_rw: Floats) -> None:
        """The inverse; both may be the same array."""


class TurnedValues:
    """Reads and writes a transform's payloads as turned values, which the codec within has: it turns nothing.

    A mean is the same in both. A rule that looks at coordinates is not: where vectors are heavy-tailed in their own, it
    leaves out what one of them alone says (docs/decisions/0072).
    """

    def __init__(self, stage: BlockTransform) -> None:
        self.name, self.contraction, self.gamma = stage.name, stage.contraction, stage.gamma
        self._within = stage.inner
        self._head = bytes(1) + stage.header()

    def encode(self, turned_d: torch.Tensor) -> bytes:
        """Encode turned values, fp32 (d,)."""
        return self._head + self._within.encode(turned_d)

    def decode(self, payload: bytes | memoryview, numel: int) -> torch.Tensor:
        """Decode to turned values, fp32 (numel,). Raises PayloadError, also for what was turned otherwise."""
        head, rest = cut_header(payload, len(self._head))
        if head != self._head:
            raise PayloadError("malformed", "turned by another matrix, or divided")
        return self._within.decode(rest, numel)


def turned(codec: Compressor) -> Compressor:
    """Return what reads and writes the codec's payloads without turning back; the codec itself where it turns
    nothing."""
    return TurnedValues(codec) if isinstance(codec, BlockTransform) else codec


def along_both_axes(
    x_rw: Floats, y_rw: Floats, transform: Transform, *, before_w: Floats | None = None, after_w: Floats | None = None
) -> None:
    """Each row as a matrix: `transform` its columns, then its rows. The tables are factors at the beginning and end."""
    rows, width = x_rw.shape
    across = 1 << (width.bit_length() - 1) // 2
    down = width // across
    lanes = _lanes("down", down, rows * across)
    _scaled(x_rw.reshape(rows, down, across).transpose(1, 0, 2), before_w, (down, 1, across), _matrix(lanes, rows))
    done, _ = transform(lanes, scratch("spare", lanes.shape, np.float32))
    turned = _lanes("across", across, rows * down)
    np.copyto(_matrix(turned, rows), _matrix(done, rows).transpose(2, 1, 0))
    done, _ = transform(turned, scratch("spare", turned.shape, np.float32))
    result = _matrix(done, rows).transpose(1, 2, 0)
    _scaled(result, after_w, (1, down, across), y_rw.reshape(rows, down, across))


def _lanes(name: str, count: int, across: int) -> Floats:
    lanes = scratch(name, (count, across + PADDING), np.float32)
    lanes[:, -PADDING:] = 0
    return lanes


def _matrix(lanes: Floats, rows: int) -> Floats:
    return lanes[:, :-PADDING].reshape(lanes.shape[0], rows, -1)


def _scaled(x: Floats, table_w: Floats | None, shape: tuple[int, int, int], out: Floats) -> None:
    if table_w is None:
        np.copyto(out, x)
    else:
        np.multiply(x, table_w.reshape(shape), out=out)
