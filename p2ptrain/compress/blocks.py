"""What the block-wise codecs share: a vector cut into blocks, one fp32 scale a block, then the blocks' bodies.

    payload = scale[0] .. scale[B-1] 4 bytes each, fp32 little-endian
              body[0]  .. body[B-1]  `body_bytes(width)` bytes each; only the last block may be narrower

The number of parameters is agreed beforehand, so it does not travel: it gives the exact length of a payload, which is
checked before any content is looked at. A member only says how rows of one width become bytes and floats again.

The work goes chunk by chunk, so that temporaries stay in a core's cache and a billion parameters need no more scratch
memory than a million; pool.py spreads the chunks over threads. NumPy does the arithmetic: unlike torch it starts no
threads of its own within ours. Decoding multiplies a table's value by a scale: one IEEE multiplication an element, so
that the sender and all receivers hold bit-identical estimates, whatever their machines.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from p2ptrain.compress.base import PayloadError
from p2ptrain.compress.payload_layout import Buffer, PayloadLayout
from p2ptrain.compress.pool import for_each

S = TypeVar("S", bound=np.generic)
Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

BLOCK = 1024
"""Parameters that share a scale: 4 bytes a block cost 1/32 bit a parameter, and most blocks stay in one layer."""
CHUNK_NUMEL = 1 << 18
"""Parameters worked on at a time: 1 MiB of fp32. Temporaries then lie in the third cache, not in a core's own; but with
chunks a quarter as large two threads wait longer for the interpreter's lock than that saves (q2: 2.7 GB/s, not 0.9)."""
SCALE_BYTES = 4
FLOAT_MAX = float(np.finfo(np.float32).max)
FLOAT_TINY = float(np.finfo(np.float32).tiny)
"""The smallest normal fp32: scales below it are taken for zero, since dividing by them loses all precision."""


def check_vector(x_d: torch.Tensor) -> Floats:
    """`x_d`'s values. ValueError unless it is a non-empty flat fp32 CPU tensor: a mistake in our own code."""
    if x_d.dim() != 1 or x_d.numel() == 0 or x_d.dtype != torch.float32 or x_d.device.type != "cpu":
        raise ValueError(f"a codec takes a flat fp32 CPU vector, not {tuple(x_d.shape)} {x_d.dtype} on {x_d.device}")
    return x_d.detach().contiguous().numpy()


def check_length(payload: bytes | memoryview, expected: int) -> Bytes:
    """Return the payload's bytes (no copy), or PayloadError `wrong_shape` when there are not exactly `expected`."""
    raw = np.frombuffer(payload, dtype=np.uint8)
    if raw.size != expected:
        raise PayloadError("wrong_shape", f"payload of {raw.size} bytes where the model needs {expected}")
    return raw


class Chunk(NamedTuple):
    """`rows` blocks of `width` parameters each, the first of which is block `row` of the vector."""

    row: int
    rows: int
    width: int

    def of(self, flat: npt.NDArray[S], width: int, stride: int) -> npt.NDArray[S]:
        """This chunk's rows in `flat`, a view of shape (rows, width): whole blocks have `stride` items there."""
        start = self.row * stride
        return flat[start : start + self.rows * width].reshape(self.rows, width)

    def part(self, block: int) -> slice:
        """Return where its parameters lie in the vector, whose whole blocks have `block` of them."""
        return slice(self.row * block, self.row * block + self.rows * self.width)


def chunks(numel: int, block: int, most: int = CHUNK_NUMEL) -> list[Chunk]:
    """`numel` parameters in chunks of whole blocks, of `most` parameters where a block has no more, and the last
    incomplete block as a chunk of its own."""
    whole, rest = divmod(numel, block)
    step = max(1, most // block)
    cut = [Chunk(row, min(step, whole - row), block) for row in range(0, whole, step)]
    return [*cut, Chunk(whole, 1, rest)] if rest else cut


ReadPart = Callable[[slice, Floats], None]
"""Writes the values of a slice of a vector."""
TakePart = Callable[[slice, Floats], None]
"""Is given the values of a slice of a vector; they may be overwritten, and are valid until it returns."""
Decoding = Callable[[TakePart], None]
"""Hands out all parts of a decoded vector, each once; may be called again."""
EncodeRows = Callable[[Floats, Bytes], Floats]
DecodeRows = Callable[[Floats, Bytes, Floats], None]


class Loops(NamedTuple):
    """What turns a chunk's rows into bytes and back: `BlockCodec.encode_rows` and `decode_rows`, or compiled twins."""

    encode: EncodeRows
    decode: DecodeRows


class BlockCodec(ABC):
    """Scales and bodies of blocks. Cost: O(d) time; beside the result the payload and a few chunks a thread."""

    block: int = BLOCK
    largest_scale: float = FLOAT_MAX
    """Above this a decoded value could overflow; a finite vector's scales are clamped to it, others are refused."""
    slice_of: int = 0
    """How many values the vector has of which slices are encoded; 0: vectors are whole. It decides about the loops, so
    that those of a slice write the same bits."""
    sparse: bool = False
    """Whether `decode_rows` writes some values only, into rows of zeros."""

    @abstractmethod
    def body_bytes(self, width: int) -> int:
        """Bytes of the body of one block of `width` parameters."""

    @abstractmethod
    def encode_rows(self, x_rw: Floats, body_rb: Bytes) -> Floats:
        """Write the rows' bodies; returns their scales (rows,), not finite where the row is not."""

    @abstractmethod
    def decode_rows(self, scale_r: Floats, body_rb: Bytes, out_rw: Floats) -> None:
        """Write the rows' values to `out_rw`. PayloadError `malformed` when a body cannot be one."""

    def loops(self, numel: int) -> Loops:
        """Return what codes a vector of `numel` parameters. Members with compiled loops give them where these pay."""
        return Loops(self.encode_rows, self.decode_rows)

    def size(self, numel: int) -> int:
        """Return the exact payload length for `numel` parameters."""
        return self._scales_size(numel) + self._bodies_size(numel)

    def payload_layout(self, payload: Buffer | None = None) -> PayloadLayout:
        """Return that of all blocks' scales, and then all bodies."""
        return PayloadLayout(self.block, (self._scales_size, self._bodies_size))

    def encode(self, x_d: torch.Tensor) -> bytes:
        """Encode an fp32 vector (d,)."""
        value_d = check_vector(x_d)
        return self._encode(value_d.size, lambda chunk: chunk.of(value_d, chunk.width, self.block))

    def encode_from(self, read: ReadPart, numel: int) -> bytes:
        """`encode` for a vector that is read by parts, from several threads: none of size d is made."""

        def values(chunk: Chunk) -> Floats:
            x_rw = np.empty((chunk.rows, chunk.width), dtype=np.float32)
            read(chunk.part(self.block), x_rw.reshape(-1))
            return x_rw

        return self._encode(numel, values)

    def _encode(self, numel: int, values: Callable[[Chunk], Floats]) -> bytes:
        scale_b = np.empty(self._blocks(numel), dtype=np.float32)
        payload = np.empty(self.size(numel), dtype=np.uint8)
        bodies = payload[SCALE_BYTES * scale_b.size :]
        encode_rows = self.loops(max(numel, self.slice_of)).encode

        def encode_chunk(chunk: Chunk) -> None:
            x_rw = values(chunk)
            scale_r = encode_rows(x_rw, self._bodies(chunk, bodies))
            scale_b[chunk.row : chunk.row + chunk.rows] = self._bounded(scale_r, x_rw)

        for_each(encode_chunk, chunks(numel, self.block))
        payload[: SCALE_BYTES * scale_b.size] = scale_b.astype("<f4", copy=False).view(np.uint8)
        return payload.tobytes()

    def decode(self, payload: bytes | memoryview, numel: int) -> torch.Tensor:
        """Decode to fp32 (numel,). Raises PayloadError."""
        read = self.reader(payload, numel)
        out_d = (np.zeros if self.sparse else np.empty)(numel, dtype=np.float32)
        for_each(lambda chunk: read(chunk, chunk.of(out_d, chunk.width, self.block)), chunks(numel, self.block))
        return torch.from_numpy(out_d)

    def decoding(self, payload: bytes | memoryview, numel: int) -> Decoding:
        """`decode` by parts, which are handed out to several threads: no vector of size d is made. Raises PayloadError,
        now or when called."""
        read = self.reader(payload, numel)

        def hand_out(take: TakePart) -> None:
            def decode_chunk(chunk: Chunk) -> None:
                out_rw = (np.zeros if self.sparse else np.empty)((chunk.rows, chunk.width), dtype=np.float32)
                read(chunk, out_rw)
                take(chunk.part(self.block), out_rw.reshape(-1))

            for_each(decode_chunk, chunks(numel, self.block))

        return hand_out

    def reader(self, payload: bytes | memoryview, numel: int) -> Callable[[Chunk, Floats], None]:
        """Return what writes the values of a chunk (rows, width), so that they can be used where they are still in a
        cache.

        Raises PayloadError as `decode` does, now or when called. Rows that are written to are zeros if `sparse`.
        """
        raw = check_length(payload, self.size(numel))
        scale_b = self._scales(raw[: SCALE_BYTES * self._blocks(numel)])
        bodies, decode_rows = raw[SCALE_BYTES * scale_b.size :], self.loops(numel).decode

        def read(chunk: Chunk, out_rw: Floats) -> None:
            decode_rows(scale_b[chunk.row : chunk.row + chunk.rows], self._bodies(chunk, bodies), out_rw)

        return read

    def _blocks(self, numel: int) -> int:
        return -(-numel // self.block)

    def _scales_size(self, numel: int) -> int:
        return SCALE_BYTES * self._blocks(numel)

    def _bodies_size(self, numel: int) -> int:
        whole, rest = divmod(numel, self.block)
        return whole * self.body_bytes(self.block) + (self.body_bytes(rest) if rest else 0)

    def _bodies(self, chunk: Chunk, bodies: Bytes) -> Bytes:
        return chunk.of(bodies, self.body_bytes(chunk.width), self.body_bytes(self.block))

    def _bounded(self, scale_r: Floats, x_rw: Floats) -> Floats:
        if (scale_r <= self.largest_scale).all():
            return scale_r
        finite_r = np.isfinite(x_rw).all(axis=1)
        return np.where(finite_r, np.minimum(scale_r, np.float32(self.largest_scale)), scale_r)

    def _scales(self, raw: Bytes) -> Floats:
        scale_b = raw.view("<f4").astype(np.float32)
        low, high = scale_b.min(), scale_b.max()  # NaN wins either
        if not high <= self.largest_scale or low == -np.inf:
            raise PayloadError("nonfinite", "a scale is not a finite number")
        if low < 0:
            raise PayloadError("malformed", "a scale is negative")
        return scale_b
