"""Unsigned integers of m bits each, one after another, least significant bit first: eight values are m bytes.

Byte b of eight values has bits 8b to 8b + 7 of them, which are of one value or of two that follow each other, because m
is 8 or more. So each of the m bytes is one pass over all groups of eight, and no bit is ever a byte of its own.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.uint32]
"""Integers modulo 2^bits, one dimension."""

WHOLE_BYTES: Final = {8: "<u1", 16: "<u2", 32: "<u4"}
"""Numbers of bits for which the packed values are an array as it stands in memory."""

GROUP: Final = 8
"""Values that begin and end at whole bytes, whatever the number of bits."""


def packed_size(count: int, bits: int) -> int:
    """Return the bytes of `count` values."""
    return -(-count * bits // 8)


def pack_values(values: Values, bits: int) -> bytes:
    """Return the values, shape (d,), modulo 2^bits, in ceil(d bits / 8) bytes; unused bits at the end are 0."""
    if bits in WHOLE_BYTES:
        return values.astype(WHOLE_BYTES[bits]).tobytes()
    groups_g8 = _groups(values & np.uint32((1 << bits) - 1))
    packed_gm = np.empty((len(groups_g8), bits), np.uint8)
    for place in range(bits):
        first, shift = divmod(8 * place, bits)
        byte_g = groups_g8[:, first] >> np.uint32(shift)
        if shift + 8 > bits:
            byte_g |= groups_g8[:, first + 1] << np.uint32(bits - shift)
        packed_gm[:, place] = byte_g  # cut to its last eight bits
    return packed_gm.tobytes()[: packed_size(len(values), bits)]


def unpack_values(data: bytes | memoryview, count: int, bits: int) -> Values:
    """Return the values, shape (count,), that `pack_values` has packed. ValueError for bytes of another length."""
    if len(data) != packed_size(count, bits):
        raise ValueError(f"{len(data)} bytes are not {count} values of {bits} bits")
    if bits in WHOLE_BYTES:
        return np.frombuffer(data, WHOLE_BYTES[bits]).astype(np.uint32, copy=False)
    groups = -(-count // GROUP)
    bytes_m = np.zeros(groups * bits, np.uint8)
    bytes_m[: len(data)] = np.frombuffer(data, np.uint8)
    packed_gm = bytes_m.reshape(groups, bits)
    values_g8 = np.zeros((groups, GROUP), np.uint32)
    for place in range(bits):
        first, shift = divmod(8 * place, bits)
        byte_g = packed_gm[:, place].astype(np.uint32)
        values_g8[:, first] |= byte_g << np.uint32(shift)
        if shift + 8 > bits:
            values_g8[:, first + 1] |= byte_g >> np.uint32(bits - shift)
    values_g8 &= np.uint32((1 << bits) - 1)
    return values_g8.reshape(-1)[:count]


def _groups(values: Values) -> Values:
    missing = -len(values) % GROUP
    padded = np.concatenate([values, np.zeros(missing, np.uint32)]) if missing else values
    return padded.reshape(-1, GROUP)
