"""Two bits: the four levels that lose least of a Gaussian (Lloyd-Max), with the best scale for the vector at hand.

A code holds the sign (bit 0, set for >= 0) and whether the size reaches the threshold (bit 1); four codes make a byte,
the first in its low bits. Decoding looks up a byte's four values at once.

The scale that travels is not the rms but the least-squares one, <|x|, level> / <level, level>: the same number for a
Gaussian, and the one that makes the codec a projection, hence a contraction, for *every* vector. With the plain rms a
block with one large value among zeros would come out with more error than the value itself.
"""

import numpy as np
import numpy.typing as npt

from p2ptrain import jit
from p2ptrain.compress import q2_compiled
from p2ptrain.compress.blocks import FLOAT_MAX, BlockCodec, Bytes, Floats, Loops
from p2ptrain.compress.rows import comparable, look_up, row_dots, row_sums, scratch

Bools = npt.NDArray[np.bool_]

LOW, HIGH, THRESHOLD = 0.4528, 1.510, 0.9816
"""Lloyd-Max for a unit Gaussian, two bits: levels +-LOW and +-HIGH, told apart at THRESHOLD (Max, 1960)."""
PER_BYTE = 4

_LEVELS = np.array([-LOW, LOW, -HIGH, HIGH], dtype=np.float32)
_TABLE = _LEVELS[np.arange(256)[:, None] >> np.arange(0, 8, 2) & 3]
"""(256, 4): the values that each byte stands for."""
_SPREAD = ((np.arange(256)[:, None] >> np.arange(8) & 1) << np.arange(0, 16, 2)).sum(axis=1).astype("<u2")
"""(256,): a byte's bits at every second place of 16: two bytes of codes whose upper bits are missing."""


class LloydMax2Bit(BlockCodec):
    """Two-bit Lloyd-Max quantization with one scale for each 1,024 parameters.

    Source: Max, "Quantizing for minimum distortion" (1960), table for 4 levels; least-squares scale as in EDEN
    (2108.08842).
    Guarantee: ||error||^2 = ||x||^2 - projection <= ||x||^2; 0.1175 ||x||^2 on a Gaussian vector.
    Cost: 2.03 bits a parameter, 15.75 times fewer bytes than fp32.
    """

    name = "q2"
    contraction = 0.88
    gamma = 1.0
    largest_scale = FLOAT_MAX / 2  # HIGH times it stays below the largest fp32

    def loops(self, numel: int) -> Loops:
        """Return the compiled or the plain loops, by the vector's length."""
        plain = super().loops(numel)
        is_worth_it = numel >= jit.WORTH and jit.available()
        return q2_compiled.loops(LOW, HIGH, THRESHOLD, plain) if is_worth_it else plain

    def body_bytes(self, width: int) -> int:
        """Four parameters a byte."""
        return -(-width // PER_BYTE)

    def encode_rows(self, x_rw: Floats, body_rb: Bytes) -> Floats:
        """Write the rows' bodies; return their scales."""
        size_rw, unit_r = comparable(np.abs(x_rw, out=scratch("size", x_rw.shape, np.float32)))
        threshold_r = np.float32(THRESHOLD) * np.sqrt(row_dots(size_rw, size_rw) / np.float32(x_rw.shape[1]))
        high_rw = np.greater_equal(size_rw, threshold_r[:, None], out=scratch("high", x_rw.shape, np.bool_))
        positive_rw = np.greater_equal(x_rw, 0, out=scratch("positive", x_rw.shape, np.bool_))
        _pack(positive_rw, high_rw, body_rb)
        return _least_squares(size_rw, high_rw) / unit_r

    def decode_rows(self, scale_r: Floats, body_rb: Bytes, out_rw: Floats) -> None:
        """Decode bodies and scales into `out_rw`."""
        look_up(_TABLE, body_rb, out_rw)
        np.multiply(out_rw, scale_r[:, None], out=out_rw)


def _least_squares(size_rw: Floats, high_rw: Bools) -> Floats:
    """<size, level> / <level, level> for each row, the levels being LOW and HIGH."""
    one_rw = scratch("one", high_rw.shape, np.float32)
    np.copyto(one_rw, high_rw)
    along_r = LOW * row_sums(size_rw).astype(np.float64) + (HIGH - LOW) * row_dots(size_rw, one_rw)
    square_r = size_rw.shape[1] * LOW**2 + (HIGH**2 - LOW**2) * row_sums(one_rw).astype(np.float64)
    scale_r: Floats = (along_r / square_r).astype(np.float32)
    return scale_r


def _pack(positive_rw: Bools, high_rw: Bools, body_rb: Bytes) -> None:
    """Sixteen bits hold eight signs at even and eight levels at odd places; their two bytes are four codes each."""
    sign_rb = np.packbits(positive_rw, axis=1, bitorder="little")
    level_rb = np.packbits(high_rw, axis=1, bitorder="little")
    code_rb = _SPREAD.take(sign_rb) | _SPREAD.take(level_rb) << 1
    body_rb[:] = code_rb.view(np.uint8)[:, : body_rb.shape[1]]
