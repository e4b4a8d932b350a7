"""q2's arithmetic as two compiled loops: a row is read from memory once, and written once.

Codes are those of the plain way unless a value lies within rounding of the threshold, and the scale may differ in its
last two bits: sums are in the processor's own order there as well (rows.py). Decoding is exact: one product a value.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

from p2ptrain.compress.blocks import Bytes, DecodeRows, Floats, Loops
from p2ptrain.jit import compiled

Bools = npt.NDArray[np.bool_]
EncodeLoop = Callable[[Floats, Bytes, Floats, Bools], None]

PER_BYTE: Final = 4
LEAST_SQUARES: Final = 2.0**-76
MOST_SQUARES: Final = 2.0**90
"""Rows whose sum of squares lies between are precise in fp32. Others are left to the plain way, which scales them."""


def loops(low: float, high: float, threshold: float, plain: Loops) -> Loops:
    """Compiled loops for these levels; `plain` for rows of no common size, or no multiple of four wide."""
    encode_loop, decode_loop = _encoder(low, high, threshold), _decoder(low, high)

    def encode(x_rw: Floats, body_rb: Bytes) -> Floats:
        if x_rw.shape[1] % PER_BYTE:
            return plain.encode(x_rw, body_rb)
        scale_r, odd_r = np.empty(len(x_rw), dtype=np.float32), np.empty(len(x_rw), dtype=np.bool_)
        encode_loop(x_rw, body_rb, scale_r, odd_r)
        if odd_r.any():
            odd_rb = body_rb[odd_r]
            scale_r[odd_r] = plain.encode(x_rw[odd_r], odd_rb)
            body_rb[odd_r] = odd_rb
        return scale_r

    def decode(scale_r: Floats, body_rb: Bytes, out_rw: Floats) -> None:
        (plain.decode if out_rw.shape[1] % PER_BYTE else decode_loop)(scale_r, body_rb, out_rw)

    return Loops(encode, decode)


@lru_cache(maxsize=1)
def _encoder(low: float, high: float, threshold: float) -> EncodeLoop:
    zero, share = np.float32(0), np.float32(threshold)
    more, low_square, more_square = high - low, low**2, high**2 - low**2

    def encode(x_rw: Floats, body_rb: Bytes, scale_r: Floats, odd_r: Bools) -> None:
        rows, width = x_rw.shape
        for r in range(rows):
            x_w, body_b = x_rw[r], body_rb[r]
            squares = zero
            for i in range(width):
                squares += x_w[i] * x_w[i]
            odd_r[r] = not (squares > LEAST_SQUARES and squares < MOST_SQUARES)  # NaN is odd
            if odd_r[r]:
                continue
            least = share * np.sqrt(squares / np.float32(width))
            total, upper, uppers = zero, zero, np.int32(0)
            for i in range(width):
                size = abs(x_w[i])
                total += size
                upper += size if size >= least else zero
                uppers += np.int32(size >= least)
            scale_r[r] = (low * total + more * upper) / (low_square * width + more_square * uppers)
            for b in range(width // PER_BYTE):
                codes = np.uint8(0)
                for place in range(PER_BYTE):
                    value = x_w[PER_BYTE * b + place]
                    codes |= np.uint8(((value >= 0) | ((abs(value) >= least) << 1)) << (2 * place))
                body_b[b] = codes

    return compiled(encode, reorder=True)


@lru_cache(maxsize=1)
def _decoder(low: float, high: float) -> DecodeRows:
    level_4 = np.array([-low, low, -high, high], dtype=np.float32)

    def decode(scale_r: Floats, body_rb: Bytes, out_rw: Floats) -> None:
        rows, bytes_ = body_rb.shape
        value_4 = np.empty(4, dtype=np.float32)
        for r in range(rows):
            for code in range(4):
                value_4[code] = level_4[code] * scale_r[r]
            body_b, out_w = body_rb[r], out_rw[r]
            for b in range(bytes_):
                codes = body_b[b]
                out_w[PER_BYTE * b] = value_4[codes & 3]
                out_w[PER_BYTE * b + 1] = value_4[codes >> 2 & 3]
                out_w[PER_BYTE * b + 2] = value_4[codes >> 4 & 3]
                out_w[PER_BYTE * b + 3] = value_4[codes >> 6]

    return compiled(decode)
