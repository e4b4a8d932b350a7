"""topk's payload in a form that an entropy coder can shorten: gaps between places instead of places.

    plain = head, scales   as in topk.py
            gaps           1 byte for each kept place: how many parameters it skips from the one before (the first: from
                           the chunk's beginning); 255 for 255 or more
            more           2 bytes, little-endian, for each such 255 in order: how many it skips beyond 255
            values         each chunk's values in turn, as in topk.py

A place takes 12 bits in a payload, whatever its neighbours are; its gap has an entropy of 4.7 bits at a ratio of 1/10,
7.4 at 1/64. Nothing is lost: either form gives the other.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from p2ptrain.compress.base import PayloadError
from p2ptrain.compress.blocks import SCALE_BYTES, Bytes
from p2ptrain.compress.topk import CHUNK, HEADER_BYTES, K_BITS, pack_places, places_bytes, unpack_places
from p2ptrain.compress.topk_values import MIN_BITS, WHOLE_BITS, values_bytes

LONG = 255


class DeltaPart(NamedTuple):
    """Chunks of one width: all the whole ones, or the last."""

    rows: int
    width: int
    kept: int
    values: int
    """Bytes of a chunk's values."""

    @property
    def body(self) -> int:
        """Bytes of a chunk in a payload."""
        return places_bytes(self.kept) + self.values


class DeltaLayout:
    """Where things stand in a topk payload with this head. PayloadError when no such head, or no such payload, is."""

    def __init__(self, raw: Bytes, numel: int) -> None:
        if raw.size < HEADER_BYTES:
            raise PayloadError("wrong_shape", "payload without a header")
        head = int(raw[0]) | int(raw[1]) << 8
        k, bits = head & (1 << K_BITS) - 1, WHOLE_BITS - (head >> K_BITS)
        if not 1 <= k <= CHUNK or bits < MIN_BITS:
            raise PayloadError("malformed", f"k = {k} of {CHUNK}, values of {bits} bits")
        whole, rest = divmod(numel, CHUNK)
        kepts = [(rows, width, -(-k * width // CHUNK)) for rows, width in ((whole, CHUNK), (1, rest)) if rows and width]
        self.parts = [DeltaPart(*part, values_bytes(part[2], bits)) for part in kepts]
        self.start = HEADER_BYTES + SCALE_BYTES * -(-numel // CHUNK)
        """Bytes of the head and the scales."""
        self.kept = sum(part.rows * part.kept for part in self.parts)
        self.values = sum(part.rows * part.values for part in self.parts)
        self.bodies = sum(part.rows * part.body for part in self.parts)

    def cut(self, raw: Bytes, sizes: list[int]) -> Iterator[tuple[DeltaPart, Bytes]]:
        """`raw` as the parts' rows, of these sizes each."""
        for part, size in zip(self.parts, sizes, strict=True):
            yield part, raw[: part.rows * size].reshape(part.rows, size)
            raw = raw[part.rows * size :]


def to_plain(payload: bytes, numel: int) -> list[bytes]:
    """Return the plain form of a topk payload of our own, in pieces of one kind each."""
    raw = np.frombuffer(payload, dtype=np.uint8)
    layout = DeltaLayout(raw, numel)
    gaps, more, values = [], [], []
    for part, body_rb in layout.cut(raw[layout.start :], [part.body for part in layout.parts]):
        place_rk = unpack_places(body_rb[:, : -part.values], part.kept)
        gap_rk = np.diff(place_rk, axis=1, prepend=-1) - 1
        gaps.append(np.minimum(gap_rk, LONG).astype(np.uint8).tobytes())
        more.append((gap_rk[gap_rk >= LONG] - LONG).astype("<u2").tobytes())
        values.append(body_rb[:, -part.values :].tobytes())
    return [payload[: layout.start], b"".join(gaps), b"".join(more), b"".join(values)]


def from_plain(plain: bytes, numel: int) -> bytes:
    """Return the payload of a plain form. PayloadError `wrong_shape` or `malformed` when there is none."""
    raw = np.frombuffer(plain, dtype=np.uint8)
    layout = DeltaLayout(raw, numel)
    gap_n = raw[layout.start : layout.start + layout.kept]
    long_n = np.flatnonzero(gap_n == LONG)
    more_at = layout.start + layout.kept
    values_at = more_at + 2 * long_n.size
    if raw.size != values_at + layout.values:
        raise PayloadError("wrong_shape", f"plain form of {raw.size} bytes, not {values_at + layout.values}")
    whole_n = gap_n.astype(np.intp)
    whole_n[long_n] += raw[more_at:values_at].view("<u2")
    bodies = np.empty(layout.bodies, dtype=np.uint8)
    values = layout.cut(raw[values_at:], [part.values for part in layout.parts])
    for (part, value_rb), (_, body_rb) in zip(values, layout.cut(bodies, [p.body for p in layout.parts]), strict=True):
        pack_places(_places(whole_n[: part.rows * part.kept], part), body_rb[:, : -part.values])
        body_rb[:, -part.values :] = value_rb
        whole_n = whole_n[part.rows * part.kept :]
    return plain[: layout.start] + bodies.tobytes()


def _places(gap_n: npt.NDArray[np.intp], part: DeltaPart) -> npt.NDArray[np.intp]:
    place_rk: npt.NDArray[np.intp] = np.cumsum(gap_n.reshape(part.rows, part.kept) + 1, axis=1) - 1
    if (place_rk[:, -1] >= part.width).any():
        raise PayloadError("malformed", "a place outside its chunk")
    return place_rk
