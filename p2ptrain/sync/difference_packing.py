"""How far a model moved from its anchor, as bytes of which every part can be read by itself; and what keeps the
members' anchors alike.

    piece = counted   8 bytes: the members of the group whose differences are in it, a bit each; 0 in one's own
            moved     codec(theta - phi + residual), of the piece's w parameters, or by turns of w / period of them
            anchor    fp16(phi), of w / refresh of them, others in every round
            ...       what a strategy sends beside these, each in a codec of its own

The anchors' part is a share of 16 / refresh bits a parameter. It adds nothing while anchors are alike, as its mean is
then each one's own.
"""

from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cache
from typing import Final

import torch

from p2ptrain.compress.base import Compressor
from p2ptrain.compress.float16 import Fp16
from p2ptrain.compress.payload_layout import size_of
from p2ptrain.compress.transform import turned
from p2ptrain.sync.packing import Packing, most_in, part_bytes_of

COUNTED_BYTES: Final = 8
"""A bit a member: as many as the network's largest group has (LARGEST_GROUP)."""

LITTLE: Final = "little"


@dataclass(frozen=True)
class Section:
    """Numbers of one kind in every piece."""

    codec: Compressor
    count: Callable[[int], int]
    """How many of them a piece of so many parameters has: no more than these, and never fewer of a larger one."""


@dataclass(frozen=True)
class Rotation:
    """A vector that lies along a model's `parameters`, of which a share travels in each round: all of it in `rounds`.
    A piece of the model has the piece of the vector beside it, as long in pieces as long; those may overlap."""

    numel: int
    parameters: int
    rounds: int

    def count(self, width: int) -> int:
        """Return how many of its values travel beside `width` parameters."""
        return -(-self._length(width) // self.rounds)

    def at(self, piece: slice, round: int) -> slice:
        """Return which of its values travel beside a piece of the model in a round."""
        length, count = self._length(piece.stop - piece.start), self.count(piece.stop - piece.start)
        start = min(piece.start * self.numel // self.parameters, self.numel - length)
        start += min(round % self.rounds * count, length - count)
        return slice(start, start + count)

    def _length(self, width: int) -> int:
        return -(-width * self.numel // self.parameters)


class _PieceCodec:
    """Encodes the sections of a piece in a row."""

    def __init__(self, sections: Sequence[Section]) -> None:
        codec = sections[0].codec
        self.name, self.contraction, self.gamma = codec.name, codec.contraction, codec.gamma
        self._sections = sections
        self.width = cache(self._width)
        self._size = cache(lambda index, count: size_of(sections[index].codec, count))

    def counts(self, width: int) -> list[int]:
        """Return how many numbers the sections of a piece of so many parameters have."""
        return [section.count(width) for section in self._sections]

    def size(self, width: int) -> int:
        """Return how many bytes a piece of so many parameters has."""
        return COUNTED_BYTES + sum(self._size(index, count) for index, count in enumerate(self.counts(width)))

    def encode(self, x_d: torch.Tensor) -> bytes:
        """Encode fp32 (numbers of all sections,)."""
        return self.encode_all(torch.split(x_d, self.counts(self.width(x_d.numel()))))

    def encode_all(self, values: Iterable[torch.Tensor]) -> bytes:
        """Encode the values of each section."""
        parts = (section.codec.encode(x_s.contiguous()) for section, x_s in zip(self._sections, values, strict=True))
        return bytes(COUNTED_BYTES) + b"".join(parts)

    def decode(self, payload: bytes | memoryview, numel: int) -> torch.Tensor:
        """Decode to fp32 (numel,). Raises PayloadError."""
        view, counts, parts = memoryview(payload)[COUNTED_BYTES:], self.counts(self.width(numel)), []
        for index, count in enumerate(counts):
            size = self._size(index, count)
            parts.append(self._sections[index].codec.decode(view[:size], count))
            view = view[size:]
        return torch.cat(parts)

    def _width(self, numel: int) -> int:
        """The parameters of a piece that has so many numbers in all: of several such one, as their counts are alike."""
        least, most = 1, 2
        while sum(self.counts(most)) <= numel:
            least, most = most, 2 * most
        while least + 1 < most:
            middle = (least + most) // 2
            least, most = (middle, most) if sum(self.counts(middle)) <= numel else (least, middle)
        return least


class DifferencePacking(Packing):
    """Packs the differences of a model with `parameters` of them. Memory: none."""

    def __init__(
        self, codec: Compressor, parameters: int, refresh: int, others: Sequence[Section] = (), *, period: int = 1
    ) -> None:
        """`others`: what travels beside differences and anchor. `period`: rounds in which all differences travel."""
        self._moved = Rotation(parameters, parameters, period)
        self._anchor = Rotation(parameters, parameters, refresh)
        sections = (Section(codec, self._moved.count), Section(Fp16(), self._anchor.count), *others)
        piece_codec = _PieceCodec(sections)
        self._counts = cache(piece_codec.counts)
        part_bytes = part_bytes_of(piece_codec.size, parameters)
        # A byte less, so that no last piece is as long as a full one, which is filled up.
        width = most_in(piece_codec.size, part_bytes - 1)
        pieces = -(-parameters // width)
        full, last = (sum(self._counts(each)) for each in (width, parameters - (pieces - 1) * width))
        self._width = piece_codec.width
        super().__init__(piece_codec, (pieces - 1) * full + last, piece_numel=full, part_bytes=part_bytes)
        self.spans = [slice(start, min(start + width, parameters)) for start in range(0, parameters, width)]
        """Where the pieces lie in the model."""
        self.reducing: Packing = self
        """The same pieces for who reduces them: differences are read as the codec turns them, and not turned back."""
        if (reader := turned(codec)) is not codec:
            self.reducing = copy(self)
            self.reducing.codec = _PieceCodec((Section(reader, self._moved.count), *sections[1:]))

    def moved(self, at: slice, round: int) -> slice:
        """Return which of a piece's differences travel in a round: all of them in `period` rounds."""
        return self._moved.at(at, round)

    def refreshed(self, at: slice, round: int) -> slice:
        """Return which of a piece's anchor values travel in a round: all of them in `refresh` rounds."""
        return self._anchor.at(at, round)

    def span(self, part: slice) -> slice:
        """Return the parameters that the bytes `part` stand for; it begins where a piece does."""
        width = self.part_bytes
        return slice(self.spans[part.start // width].start, self.spans[(part.stop - 1) // width].stop)

    def counted(self, part: bytes | memoryview, index: int) -> int:
        """Return the members that a piece of a reduced part counts, a bit each in the order of the group."""
        start = index * self.part_bytes
        return int.from_bytes(part[start : start + COUNTED_BYTES], LITTLE)

    def split(self, piece_p: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what a piece says: how far parameters moved, and the anchor's values."""
        moved_p, anchor_p, *_ = self.sections(piece_p)
        return moved_p, anchor_p

    def sections(self, piece_p: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return all that a piece says: what `split` does, and what travels beside."""
        return tuple(torch.split(piece_p, self._counts(self._width(piece_p.numel()))))


def counting(piece: bytes, members: int) -> bytes:
    """Return a packed piece that says that it counts these members."""
    return members.to_bytes(COUNTED_BYTES, LITTLE) + piece[COUNTED_BYTES:]
