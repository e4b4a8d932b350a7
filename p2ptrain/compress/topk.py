"""Top-k: of every 4,096 parameters the k largest, with 12-bit places and values of 2 to 8 bits; the rest waits.

    payload = head                   2 bytes, little-endian: how many of a full chunk travel (k, 1 to 4096, in the lower
                                     13 bits), then 8 less the bits of a value, so that 8-bit values have zeros there
              scale[0] .. scale[C-1] 4 bytes each, as in blocks.py
              body[0]  .. body[C-1]  places (two in 3 bytes), then values (topk_values.py)

The head fixes the exact length, so a receiver needs no option of the sender's, and no length in a payload is believed.
Places must rise, so that none can be written twice (whose order would be undefined).
What does not travel stays in the difference to the tracked estimate, which is the error feedback.

Bits a parameter, all included, and how much of ||x||^2 arrives, of 2^20 values that are Gaussian and Student's (3):

| ratio | value_bits | bits   | fp32 / payload | Gaussian | Student |
|-------|------------|--------|----------------|----------|---------|
| 0.1   | 8          | 2.0098 | 15.9           | .439     | .712    |
| 0.1   | 4          | 1.6113 | 19.9           | .439     | .682    |
| 0.1   | 2          | 1.4121 | 22.7           | .435     | .634    |
| 1/64  | 8          | 0.3203 | 99.9           | .119     | .419    |
| 1/64  | 2          | 0.2285 | 140.0          | .119     | .394    |
| 0.015 | 2          | 0.2227 | 143.7          | .115     | .389    |
| 0.008 | 2          | 0.1270 | 252.0          | .071     | .327    |

1/64 with 2 bits is SparseLoCo's, whose 0.219 bits are its places and values; ours has a scale and a floor beside.
"""

from statistics import NormalDist
from typing import Annotated

import numpy as np
import torch

from p2ptrain.compress.base import PayloadError, sparse_gamma_for
from p2ptrain.compress.blocks import FLOAT_MAX, BlockCodec, Bytes, Decoding, Floats, ReadPart
from p2ptrain.compress.topk_select import Places, largest_places
from p2ptrain.compress.topk_values import MIN_BITS, WHOLE_BITS, decode_values, encode_values, values_bytes

CHUNK = 4096
"""Parameters that compete with each other: 12 bits name a place (SparseLoCo, 2508.15706)."""
HEADER_BYTES = 2
K_BITS = 13
DEFAULT_RATIO = 0.1
KEPT_SHARE = 0.955
"""Of what the largest hold, what arrives at least: with 2 bits 0.989 does at a ratio of 0.1, more at smaller ones."""


class TopK:
    """The largest `ratio` of each 4,096 parameters, `value_bits` bits each.

    Source: SparseLoCo (2508.15706).
    Guarantee: ||error||^2 <= (1 - 0.98 k/4096) ||x||^2 for every vector with 8 bits; with fewer, the kept values lose
    at most what quantizing them costs, and never more than they are.
    Cost: 12 + value_bits bits for each value that travels, and 32 a chunk. Selection takes most time.
    """

    name = "topk"

    def __init__(
        self,
        *,
        ratio: Annotated[float, "Share of the parameters that travel in a round."] = DEFAULT_RATIO,
        value_bits: Annotated[int, "Bits of each value that travels."] = WHOLE_BITS,
    ) -> None:
        if not 0 < ratio <= 1:
            raise ValueError(f"topk: ratio must be in (0, 1], not {ratio}")
        if value_bits not in range(MIN_BITS, WHOLE_BITS + 1):
            raise ValueError(f"topk: value_bits must be {MIN_BITS} to {WHOLE_BITS}, not {value_bits}")
        self._rows = _Rows(max(1, round(ratio * CHUNK)), value_bits)
        self.contraction = round(KEPT_SHARE * kept_of_gaussian(self._rows.k / CHUNK), 6)
        self.gamma = sparse_gamma_for(self.contraction)

    def gamma_of(self, payload: bytes | memoryview) -> float:
        """Return the consensus step for the ratio that the payload's head names."""
        rows, _ = _opened(payload)
        return TopK(ratio=rows.k / CHUNK).gamma

    def encode(self, x_d: torch.Tensor) -> bytes:
        """Encode an fp32 vector (d,)."""
        return self._head() + self._rows.encode(x_d)

    def encode_from(self, read: ReadPart, numel: int) -> bytes:
        """`encode` for a vector that is read by parts."""
        return self._head() + self._rows.encode_from(read, numel)

    def decode(self, payload: bytes | memoryview, numel: int) -> torch.Tensor:
        """Decode to fp32 (numel,). Raises PayloadError."""
        rows, body = _opened(payload)
        return rows.decode(body, numel)

    def decoding(self, payload: bytes | memoryview, numel: int) -> Decoding:
        """`decode` by parts. Raises PayloadError, now or when called."""
        rows, body = _opened(payload)
        return rows.decoding(body, numel)

    def _head(self) -> bytes:
        return (self._rows.k | WHOLE_BITS - self._rows.value_bits << K_BITS).to_bytes(HEADER_BYTES, "little")


def _opened(payload: bytes | memoryview) -> "tuple[_Rows, memoryview]":
    """Return the rows and their bytes."""
    view = memoryview(payload)
    if view.nbytes < HEADER_BYTES:
        raise PayloadError("wrong_shape", "payload without a header")
    head = int.from_bytes(view[:HEADER_BYTES], "little")
    k, value_bits = head & (1 << K_BITS) - 1, WHOLE_BITS - (head >> K_BITS)
    if not 1 <= k <= CHUNK or value_bits < MIN_BITS:
        raise PayloadError("malformed", f"k = {k} of {CHUNK}, values of {value_bits} bits")
    return _Rows(k, value_bits), view[HEADER_BYTES:]


def kept_of_gaussian(ratio: float) -> float:
    """Return the share of a Gaussian vector's ||x||^2 that its largest `ratio` hold: 2 (t pdf(t) + 1 - cdf(t))."""
    if ratio == 1:
        return 1.0
    normal = NormalDist()
    threshold = normal.inv_cdf(1 - ratio / 2)
    return 2 * threshold * normal.pdf(threshold) + ratio


class _Rows(BlockCodec):
    block = CHUNK
    sparse = True

    def __init__(self, k: int, value_bits: int) -> None:
        self.k = k
        self.value_bits = value_bits
        if value_bits == WHOLE_BITS:
            self.largest_scale = FLOAT_MAX / 128  # 127 steps of it stay below the largest fp32

    def kept(self, width: int) -> int:
        return -(-self.k * width // CHUNK)

    def body_bytes(self, width: int) -> int:
        kept = self.kept(width)
        return places_bytes(kept) + values_bytes(kept, self.value_bits)

    def encode_rows(self, x_rw: Floats, body_rb: Bytes) -> Floats:
        kept = self.kept(x_rw.shape[1])
        flat_rk = largest_places(x_rw, kept)
        pack_places(flat_rk - _first(x_rw), body_rb[:, : places_bytes(kept)])
        return encode_values(x_rw.reshape(-1).take(flat_rk), self.value_bits, body_rb[:, places_bytes(kept) :])

    def decode_rows(self, scale_r: Floats, body_rb: Bytes, out_rw: Floats) -> None:
        width = out_rw.shape[1]
        kept = self.kept(width)
        place_rk = unpack_places(body_rb[:, : places_bytes(kept)], kept)
        if not (place_rk[:, 1:] > place_rk[:, :-1]).all() or (place_rk[:, -1] >= width).any():
            raise PayloadError("malformed", "places that do not rise, or lie outside")
        value_rk = decode_values(scale_r, body_rb[:, places_bytes(kept) :], kept, self.value_bits)
        out_rw.reshape(-1)[place_rk + _first(out_rw)] = value_rk


def _first(x_rw: Floats) -> Places:
    """(rows, 1): where each row begins in the flattened rows."""
    return np.arange(0, x_rw.size, x_rw.shape[1])[:, None]


def places_bytes(kept: int) -> int:
    """Bytes that `kept` places take."""
    return 3 * (-(-kept // 2))


def pack_places(place_rk: Places, raw_rb: Bytes) -> None:
    """Two 12-bit places in 3 bytes, the first in the low bits; an odd one out is paired with 0."""
    rows, kept = place_rk.shape
    pair_rp = np.zeros((rows, -(-kept // 2)), dtype="<u4")
    pair_rp[:] = place_rk[:, 0::2]
    pair_rp[:, : kept // 2] |= place_rk[:, 1::2].astype("<u4") << 12
    raw_rb.reshape(rows, -1, 3)[:] = pair_rp.view(np.uint8).reshape(rows, -1, 4)[:, :, :3]


def unpack_places(raw_rb: Bytes, kept: int) -> Places:
    """Return the inverse of pack_places. Anything may come out of bytes that it did not make, but below 4,096."""
    rows = raw_rb.shape[0]
    byte_rp4 = np.zeros((rows, raw_rb.shape[1] // 3, 4), dtype=np.uint8)
    byte_rp4[:, :, :3] = raw_rb.reshape(rows, -1, 3)
    pair_rp = byte_rp4.view("<u4")[:, :, 0]
    place_rp2 = np.stack([pair_rp & 4095, pair_rp >> 12], axis=2)
    return place_rp2.reshape(rows, -1)[:, :kept].astype(np.intp)
