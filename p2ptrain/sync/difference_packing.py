"""How far a model moved from its anchor, as bytes of which every part can be read by itself; and what keeps the
members' anchors alike.

    piece = counted   8 bytes: the members of the group whose differences are in it, a bit each; 0 in one's own
            moved     codec(theta - phi + residual), of the piece's w parameters
            anchor    fp16(phi), of w / refresh of them, others in every round

The anchors' part is a share of 16 / refresh bits a parameter. It adds nothing while anchors are alike, as its mean is
then each one's own.
"""

from typing import Final

import torch

from p2ptrain.compress.base import Compressor
from p2ptrain.compress.float16 import HALF_BYTES, Fp16
from p2ptrain.sync.packing import PART_BYTES, Packing, most_in

COUNTED_BYTES: Final = 8
"""A bit a member: as many as the network's largest group has (LARGEST_GROUP)."""

LITTLE: Final = "little"


class _PieceCodec:
    """Encodes `moved` and `anchor` in a row."""

    def __init__(self, codec: Compressor, refresh: int) -> None:
        self.name = codec.name
        self.contraction = codec.contraction
        self.gamma = codec.gamma
        self._codec = codec
        self._anchor = Fp16()
        self._refresh = refresh

    def moved(self, numel: int) -> int:
        """Of so many numbers in a row, those that are differences."""
        return numel - -(-numel // (self._refresh + 1))

    def encode(self, x_d: torch.Tensor) -> bytes:
        """Encode fp32 (moved + anchor,)."""
        width = self.moved(x_d.numel())
        return bytes(COUNTED_BYTES) + self._codec.encode(x_d[:width]) + self._anchor.encode(x_d[width:])

    def decode(self, payload: bytes | memoryview, numel: int) -> torch.Tensor:
        """Decode to fp32 (numel,). Raises PayloadError."""
        width, ends = self.moved(numel), max(0, len(payload) - HALF_BYTES * (numel - self.moved(numel)))
        moved_d = self._codec.decode(payload[COUNTED_BYTES:ends], width)
        return torch.cat([moved_d, self._anchor.decode(payload[ends:], numel - width)])


class DifferencePacking(Packing):
    """Packs the differences of a model with `parameters` of them. Memory: none."""

    def __init__(self, codec: Compressor, parameters: int, refresh: int) -> None:
        piece_codec, self._refresh = _PieceCodec(codec, refresh), refresh
        # A byte less, so that no last piece is as long as a full one, which is filled up.
        width = piece_codec.moved(most_in(piece_codec, PART_BYTES - 1))
        pieces = -(-parameters // width)
        last = parameters - (pieces - 1) * width
        full = width + self._share(width)
        super().__init__(piece_codec, (pieces - 1) * full + last + self._share(last), piece_numel=full)
        self.spans = [slice(start, min(start + width, parameters)) for start in range(0, parameters, width)]
        """Where the pieces lie in the model."""

    def refreshed(self, at: slice, round: int) -> slice:
        """Return which of a piece's anchor values travel in a round: all of them in `refresh` rounds."""
        width = at.stop - at.start
        share = self._share(width)
        start = at.start + min(round % self._refresh * share, width - share)
        return slice(start, start + share)

    def span(self, part: slice) -> slice:
        """Return the parameters that the bytes `part` stand for; it begins where a piece does."""
        return slice(self.spans[part.start // PART_BYTES].start, self.spans[(part.stop - 1) // PART_BYTES].stop)

    def split(self, piece_p: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what a piece says: how far its parameters moved, and the anchor's values."""
        share = -(-piece_p.numel() // (self._refresh + 1))
        return piece_p[:-share], piece_p[-share:]

    def _share(self, width: int) -> int:
        return -(-width // self._refresh)


def counted(part: bytes | memoryview, index: int) -> int:
    """Return the members that a piece of a reduced part counts, a bit each in the order of the group."""
    start = index * PART_BYTES
    return int.from_bytes(part[start : start + COUNTED_BYTES], LITTLE)


def counting(piece: bytes, members: int) -> bytes:
    """Return a packed piece that says that it counts these members."""
    return members.to_bytes(COUNTED_BYTES, LITTLE) + piece[COUNTED_BYTES:]
