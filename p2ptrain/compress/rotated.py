"""Rotated: random signs, a Walsh-Hadamard transform of each block, then any codec: `rotated+q2`, `rotated+sign1`.

    payload = shift            1 byte, see transform.py
              log2 of block    1 byte, 0..16
              seed             4 bytes, little-endian
              inner payload

The rotation spreads each block's energy over all of its values, so that they look Gaussian whatever the vector was,
and a quantizer that is made for a Gaussian meets one. Forward: y = H (s x) / sqrt(block), s the signs that SplitMix64
gives from the seed (the same for each block), H the Hadamard matrix in Sylvester's order. Backward: x = s / sqrt(block)
(H y). H is log2(block) rounds of sums and differences, of values 1, 2, 4 .. apart along the columns of transform.py's
matrix and then, as Sylvester's matrices are Kronecker products, along its rows.
"""

import math
import struct
from functools import lru_cache
from typing import Annotated

import numpy as np

from p2ptrain.compress.base import Compressor, PayloadError
from p2ptrain.compress.blocks import Floats
from p2ptrain.compress.q2 import LloydMax2Bit
from p2ptrain.compress.splitmix import signs
from p2ptrain.compress.transform import BlockTransform, along_both_axes

HEADER = struct.Struct("<BI")
MAX_LOG_BLOCK = 16
"""256 KiB of fp32: a block and its temporaries still fit a core's L2 cache."""


class Rotated(BlockTransform):
    """A randomized Hadamard rotation of blocks before the codec within.

    Source: structured random rotations as in Suresh et al. (1611.00429), DRIVE (2105.08339) and EDEN (2108.08842).
    Guarantee: that of the codec within; and its error for a Gaussian where no few values hold most of a block's
    energy. With sign1, on average over the signs, ||error||^2 <= ||x||^2 / 2 for every vector (Khintchine's inequality
    with Szarek's constant: each turned value is a sum with random signs). One seed's worst case always exists.
    Cost: 6 bytes a payload; ten to twelve copies of the vector each way.
    """

    stage = "rotated"
    header_bytes = HEADER.size

    def __init__(
        self,
        inner: Compressor | None = None,
        *,
        block: Annotated[int, "Parameters that are rotated together: a power of two."] = 1024,
        seed: Annotated[int, "Of the random choice."] = 0,
    ) -> None:
        super().__init__(inner or LloydMax2Bit())
        if block.bit_count() != 1 or block >> MAX_LOG_BLOCK > 1 or block < 1:
            raise ValueError(f"rotated: block must be a power of two up to {1 << MAX_LOG_BLOCK}, not {block}")
        if not 0 <= seed < 1 << 32:
            raise ValueError(f"rotated: seed must be in [0, 2^32), not {seed}")
        self.block = block
        self.seed = seed

    def header(self) -> bytes:
        """Return what a reader must know, `header_bytes` of it."""
        return HEADER.pack(self.block.bit_length() - 1, self.seed)

    def reader(self, header: memoryview) -> "Rotated":
        """Return the transform that `header` describes. PayloadError `malformed` when it is none."""
        log_block, seed = HEADER.unpack(header)
        if log_block > MAX_LOG_BLOCK:
            raise PayloadError("malformed", f"blocks of 2^{log_block}")
        return Rotated(self.inner, block=1 << log_block, seed=seed)

    def forward(self, x_rw: Floats, y_rw: Floats) -> None:
        """Transform rows `x_rw` into `y_rw`."""
        along_both_axes(x_rw, y_rw, hadamard, before_w=_factors(self.seed, x_rw.shape[1]))

    def backward(self, y_rw: Floats, x_rw: Floats) -> None:
        """Transform rows `y_rw` back into `x_rw`."""
        along_both_axes(y_rw, x_rw, hadamard, after_w=_factors(self.seed, y_rw.shape[1]))


@lru_cache(maxsize=64)
def _factors(seed: int, width: int) -> Floats:
    """Signs over sqrt(width): exact where the root is whole, else rounded once to fp32. At most 16 MiB are kept."""
    factor_w = signs(seed, width) * np.float32(1 / math.sqrt(width))
    factor_w.flags.writeable = False
    return factor_w


def hadamard(x_wl: Floats, spare_wl: Floats) -> tuple[Floats, Floats]:
    """Sylvester's Hadamard matrix times each column. `Transform`."""
    width, lanes = x_wl.shape
    apart = 1
    while apart < width:
        pair_p2l = x_wl.reshape(width // (2 * apart), 2, apart * lanes)
        out_p2l = spare_wl.reshape(pair_p2l.shape)
        np.add(pair_p2l[:, 0], pair_p2l[:, 1], out=out_p2l[:, 0])
        np.subtract(pair_p2l[:, 0], pair_p2l[:, 1], out=out_p2l[:, 1])
        x_wl, spare_wl = spare_wl, x_wl
        apart *= 2
    return x_wl, spare_wl
