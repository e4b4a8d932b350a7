"""A model as bytes of which every part can be read by itself: what the members of a group exchange.

The vector is cut into pieces, each encoded alone and filled up with zeros to `part_bytes`, so that every part that
begins at a multiple of these is a run of whole pieces. What is shorter is the last one, and is not filled up.

Pieces of a small model are small: with one piece its owner alone would send all that a round's group takes.

Whole models travel here, not differences, so that only codecs serve which keep a parameter to a percent or so: none,
fp16, bf16, int8. Two bits of a model are no model.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

import torch

from p2ptrain.compress.base import Compressor, PayloadError
from p2ptrain.compress.payload_layout import size_of
from p2ptrain.sync.vectors import is_sane

PACKERS: Final = ("none", "fp16", "bf16", "int8")
"""All of them make more bytes of more parameters, and as many of as many."""

DIFFERENCE_PACKERS: Final = (*PACKERS, "int4", "q2", "sign1")
"""Those that do the same, and keep enough of a difference whose loss is sent later."""

PROBE: Final = 1 << 16
"""Parameters by whose bytes is guessed how many fit. Encoding too many, for a codec without a layout, took seconds."""

PART_BYTES: Final = 1 << 20
"""The most of a piece: a chunk of gossip's blobs, which is what a part is counted in."""

LEAST_PART_BYTES: Final = 1 << 14
"""What a piece has at the least: a request takes some 200 bytes, and 0.5 ms of the computing of both ends."""

LEAST_PIECE: Final = 1 << 15
"""Parameters that a piece can hold, unless they have more bytes than PART_BYTES: lies are bounded by the norms of
pieces, and a few hundred parameters may be far from alike where as many thousands are not."""

PARTS: Final = 32
"""Pieces of a small model, at the most: among eight an owner then has at most a third more than another."""


def part_bytes_for(size: int, least: int) -> int:
    """Return how many bytes a piece of about `size` packed ones has, where LEAST_PIECE parameters have `least`: a power
    of two, for PARTS pieces or fewer."""
    least = max(LEAST_PART_BYTES, least, -(-size // PARTS))
    return min(PART_BYTES, 1 << (least - 1).bit_length())


class Packing:
    """Packs models with `numel` parameters. Memory: none."""

    def __init__(
        self, codec: Compressor, numel: int, *, piece_numel: int | None = None, part_bytes: int | None = None
    ) -> None:
        """`piece_numel`: parameters of a full piece, where these are not the most that `part_bytes` hold."""
        self.codec = codec
        self.numel = numel
        size = partial(size_of, codec)
        self.part_bytes = part_bytes_of(size, numel) if part_bytes is None else part_bytes
        self.piece_numel = most_in(size, self.part_bytes) if piece_numel is None else piece_numel
        pieces = -(-numel // self.piece_numel)
        self._last = numel - (pieces - 1) * self.piece_numel
        self._sizes = {count: size(count) for count in (self.piece_numel, self._last)}

    @property
    def exact(self) -> bool:
        """Whether nothing is lost."""
        return self.codec.contraction == 1.0

    def pack(self, x_d: torch.Tensor) -> bytes:
        """Return the bytes of a whole model, or of the parameters of a run of pieces."""
        return b"".join(self._piece(x_d[at]) for at in self.pieces(x_d.numel()))

    def numel_of(self, size: int) -> int:
        """Return how many parameters a run of pieces of `size` bytes has."""
        full, rest = divmod(size, self.part_bytes)
        return full * self.piece_numel + (self._last if rest else 0)

    def span(self, part: slice) -> slice:
        """Return the parameters that the bytes `part` stand for; it begins where a piece does."""
        start = part.start // self.part_bytes * self.piece_numel
        return slice(start, start + self.numel_of(part.stop - part.start))

    def unpack(self, packed: bytes | memoryview) -> torch.Tensor:
        """Return the parameters of a run of pieces. Raises PayloadError: the codec's reasons, and `nonfinite` beyond
        all bounds."""
        x_r = torch.empty(self.numel_of(len(packed)), dtype=torch.float32)
        for at, value_p in self._unpacking(packed):
            x_r[at] = value_p
        return x_r

    def check(self, packed: bytes | memoryview) -> None:
        """Raise as `unpack` does, with a piece in memory at a time."""
        for _ in self._unpacking(packed):
            pass

    def piece(self, packed: bytes | memoryview, index: int) -> torch.Tensor:
        """Return the parameters of a piece of a run that `check` has passed."""
        return self._decoded(memoryview(packed)[index * self.part_bytes : (index + 1) * self.part_bytes])

    def pieces(self, numel: int) -> list[slice]:
        """Return where the pieces lie in a run of so many parameters."""
        width = self.piece_numel
        return [slice(start, min(start + width, numel)) for start in range(0, numel, width)]

    def _unpacking(self, packed: bytes | memoryview) -> Iterator[tuple[slice, torch.Tensor]]:
        if not len(packed):
            raise PayloadError("wrong_shape", "no bytes")
        for index, at in enumerate(self.pieces(self.numel_of(len(packed)))):
            value_p = self.piece(packed, index)
            if not is_sane(value_p):
                raise PayloadError("nonfinite", "a model beyond all bounds")
            yield at, value_p

    def _decoded(self, piece: memoryview) -> torch.Tensor:
        numel = self.piece_numel if len(piece) == self.part_bytes else self._last
        return self.codec.decode(piece[: self._sizes[numel]], numel)

    def _piece(self, x_p: torch.Tensor) -> bytes:
        raw = self.codec.encode(x_p.contiguous())
        return raw.ljust(self.part_bytes, b"\0") if x_p.numel() == self.piece_numel else raw


def part_bytes_of(size: Callable[[int], int], numel: int) -> int:
    """Return how many bytes a piece of so many parameters has, where `size` says of any number how many it has."""
    probe = min(numel, PROBE)
    return part_bytes_for(size(probe) * numel // probe, size(LEAST_PIECE))


def most_in(size: Callable[[int], int], most_bytes: int) -> int:
    """Return the most parameters of which `size` makes no more than `most_bytes`, by halving."""
    least, most = 1, most_bytes * PROBE // size(PROBE) + PROBE
    while size(most) <= most_bytes:
        least, most = most, 2 * most
    while least + 1 < most:
        middle = (least + most) // 2
        if size(middle) <= most_bytes:
            least = middle
        else:
            most = middle
    return least
