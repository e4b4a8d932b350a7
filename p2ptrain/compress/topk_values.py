"""How top-k writes the values that it keeps: in 8 bits as int8 does, in 2 to 7 as a sign and a size.

The kept values of a chunk are the large ones: none is near zero, and their sizes lie close together. So the sizes get
2^(bits-1) even levels between a floor and the top, and no code stands for zero:

    values = floor                   1 byte: the lowest level, in 256ths of the highest
             codes                   `bits` bits each, the first in the lowest bits; bit 0 is set for values >= 0

    value = (+-) scale * (floor/256 + (1 - floor/256) * code_size / (2^(bits-1) - 1))

The parenthesis comes from a table, which leaves one multiplication. The scale is the least-squares one, as in q2: what
comes out is a projection, and never has more error than the values had size.
"""

import numpy as np
import numpy.typing as npt

from p2ptrain.compress.blocks import FLOAT_TINY, Bytes, Floats
from p2ptrain.compress.int8 import quantize
from p2ptrain.compress.rows import comparable, row_dots, row_sums

WHOLE_BITS = 8
MIN_BITS = 2
FLOORS = 256
LLOYD_ROUNDS = 3
"""From a start between the mean and the middle of the sizes, three rounds come within 1 to 3% of the best two levels'
error (33 to 410 values of a Gaussian, Laplace's or Student's)."""


def _levels(bits: int) -> Floats:
    """(256, 2^bits): what a code stands for, by the floor; in fp64, then rounded once."""
    size_c = (np.arange(1 << bits) >> 1) / ((1 << bits - 1) - 1)
    floor_f1 = np.arange(FLOORS)[:, None] / FLOORS
    sign_c = np.where(np.arange(1 << bits) & 1, 1.0, -1.0)
    return ((floor_f1 + (1 - floor_f1) * size_c) * sign_c).astype(np.float32)


_TABLES = {bits: _levels(bits) for bits in range(MIN_BITS, WHOLE_BITS)}


def values_bytes(kept: int, bits: int) -> int:
    """Bytes that `kept` values of `bits` bits take."""
    return kept if bits == WHOLE_BITS else 1 + -(-kept * bits // 8)


def encode_values(value_rk: Floats, bits: int, raw_rb: Bytes) -> Floats:
    """Write the rows' values; returns their scales (rows,), not finite where a row is not."""
    if bits == WHOLE_BITS:
        return quantize(value_rk, raw_rb.view(np.int8))
    size_rk, unit_r = comparable(np.abs(value_rk))
    low_r, high_r = _two_means(size_rk) if bits == MIN_BITS else (size_rk.min(axis=1), size_rk.max(axis=1))
    floor_r = _whole(low_r / high_r * np.float32(FLOORS), FLOORS - 1)
    low_r = high_r * (floor_r / np.float32(FLOORS))
    steps = (1 << bits - 1) - 1
    part_rk = (size_rk - low_r[:, None]) / (high_r - low_r)[:, None]
    code_rk = _whole(part_rk * np.float32(steps), steps) << np.uint8(1) | (value_rk >= 0).view(np.uint8)
    raw_rb[:, 0] = floor_r
    raw_rb[:, 1:] = _pack(code_rk, bits)
    level_rk = _TABLES[bits][floor_r[:, None], code_rk | 1]  # sizes: the sign bit as if set
    square_r = np.maximum(row_dots(level_rk, level_rk), np.float32(FLOAT_TINY))  # 0 for zeros, whose scale is then 0
    scale_r: Floats = np.divide(row_dots(size_rk, level_rk) / square_r, unit_r)
    return scale_r


def decode_values(scale_r: Floats, raw_rb: Bytes, kept: int, bits: int) -> Floats:
    """(rows, kept), from any bytes."""
    if bits == WHOLE_BITS:
        return raw_rb.view(np.int8).astype(np.float32) * scale_r[:, None]
    code_rk = _unpack(raw_rb[:, 1:], kept, bits)
    return _TABLES[bits][raw_rb[:, :1], code_rk] * scale_r[:, None]


def _two_means(size_rk: Floats) -> tuple[Floats, Floats]:
    """The means of the lower and of the upper sizes (rows,), parted halfway between the two."""
    kept = size_rk.shape[1]
    low_r, high_r, sum_r = size_rk.min(axis=1), size_rk.max(axis=1), row_sums(size_rk)
    middle_r = ((low_r + high_r) / 2 + sum_r / kept) / 2
    for _ in range(LLOYD_ROUNDS):
        upper_rk = (size_rk >= middle_r[:, None]).astype(np.float32)
        upper_r, upper_sum_r = row_sums(upper_rk), row_dots(size_rk, upper_rk)
        low_r = np.where(upper_r < kept, (sum_r - upper_sum_r) / (kept - upper_r), low_r)
        high_r = np.where(upper_r > 0, upper_sum_r / upper_r, high_r)
        middle_r = (low_r + high_r) / 2
    return low_r, high_r


def _whole(x: npt.NDArray[np.floating], most: int) -> Bytes:
    """Rounded, and brought into [0, most]; NaN, which a row of zeros or of infinities gives, becomes 0."""
    whole: Bytes = np.fmin(np.fmax(np.rint(x), 0), most).astype(np.uint8)
    return whole


def _pack(code_rk: Bytes, bits: int) -> Bytes:
    bit_rkb = np.unpackbits(code_rk[:, :, None], axis=2, count=bits, bitorder="little")
    return np.packbits(bit_rkb.reshape(code_rk.shape[0], -1), axis=1, bitorder="little")


def _unpack(raw_rb: Bytes, kept: int, bits: int) -> Bytes:
    bit_rn = np.unpackbits(raw_rb, axis=1, count=kept * bits, bitorder="little")
    return np.packbits(bit_rn.reshape(raw_rb.shape[0], kept, bits), axis=2, bitorder="little")[:, :, 0]
