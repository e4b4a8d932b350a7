"""One bit: the sign, and the mean size of each block. Eight signs a byte, the first in the lowest bit, set for >= 0."""

import numpy as np

from p2ptrain.compress.base import gamma_for
from p2ptrain.compress.blocks import BlockCodec, Bytes, Floats
from p2ptrain.compress.rows import look_up, row_sums, scratch

PER_BYTE = 8

_TABLE = ((np.arange(256)[:, None] >> np.arange(8) & 1) * 2 - 1).astype(np.float32)
"""(256, 8): the signs that each byte stands for."""


class ScaledSign(BlockCodec):
    """Signs times the block's mean size, as in scaled signSGD with error feedback (1901.09847) and 1-bit Adam.

    Guarantee: the mean size is the least-squares scale of the signs, so ||error||^2 <= ||x||^2 for every vector;
    (1 - 2/pi) ||x||^2 on a Gaussian one.
    Cost: 1.03 bits a parameter, 31 times fewer bytes than fp32; needs a smaller consensus step.
    """

    name = "sign1"
    contraction = 0.63
    gamma = gamma_for(contraction)

    def body_bytes(self, width: int) -> int:
        """Eight parameters a byte."""
        return -(-width // PER_BYTE)

    def encode_rows(self, x_rw: Floats, body_rb: Bytes) -> Floats:
        """Write the rows' bodies; return their scales."""
        positive_rw = np.greater_equal(x_rw, 0, out=scratch("positive", x_rw.shape, np.bool_))
        body_rb[:] = np.packbits(positive_rw, axis=1, bitorder="little")
        size_rw = np.abs(x_rw, out=scratch("size", x_rw.shape, np.float32))
        scale_r = row_sums(size_rw) / np.float32(x_rw.shape[1])
        beyond_r = ~np.isfinite(scale_r)  # 1,024 times 1e38 overflows fp32, though its mean does not
        if beyond_r.any():
            scale_r[beyond_r] = size_rw[beyond_r].mean(axis=1, dtype=np.float64)
        return scale_r

    def decode_rows(self, scale_r: Floats, body_rb: Bytes, out_rw: Floats) -> None:
        """Decode bodies and scales into `out_rw`."""
        look_up(_TABLE, body_rb, out_rw)
        np.multiply(out_rw, scale_r[:, None], out=out_rw)
