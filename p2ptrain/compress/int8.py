"""Eight bits: 255 even steps between plus and minus the largest size of each block.

The scale is fp32, not fp16: a block of differences below 6e-8 or above 65,504 would lose its scale, or become infinite.
"""

import numpy as np
import numpy.typing as npt

from p2ptrain.compress.blocks import FLOAT_MAX, FLOAT_TINY, BlockCodec, Bytes, Floats
from p2ptrain.compress.rows import scratch

STEPS = 127


def quantize(x_rw: Floats, whole_rw: npt.NDArray[np.int8]) -> Floats:
    """Scales (rows,); writes whole numbers in [-127, 127], zeros for rows that are not finite."""
    scale_r: Floats = np.maximum(x_rw.max(axis=1), -x_rw.min(axis=1)) / np.float32(STEPS)
    usable_r = np.isfinite(scale_r) & (scale_r >= FLOAT_TINY)
    inverse_r = np.where(usable_r, np.reciprocal(scale_r), np.float32(0))
    step_rw = np.multiply(x_rw, inverse_r[:, None], out=scratch("step", x_rw.shape, np.float32))
    np.rint(step_rw, out=step_rw)
    if not usable_r.all():
        step_rw[~usable_r] = 0
    np.copyto(whole_rw, step_rw, casting="unsafe")
    return scale_r


class Int8(BlockCodec):
    """Block-wise absolute-maximum quantization, as in 8-bit optimizers (Dettmers et al., 2110.02861).

    Guarantee: each value is off by at most max|block| / 254, so ||error||^2 <= 0.016 ||x||^2 whatever the vector;
    1e-4 ||x||^2 on a Gaussian one.
    Cost: 8.03 bits a parameter.
    """

    name = "int8"
    contraction = 0.984
    gamma = 1.0
    largest_scale = FLOAT_MAX / 128  # 127 steps of it stay below the largest fp32

    def body_bytes(self, width: int) -> int:
        """Return `numel`: one byte a parameter."""
        return width

    def encode_rows(self, x_rw: Floats, body_rb: Bytes) -> Floats:
        """Write the rows' bodies; return their scales."""
        return quantize(x_rw, body_rb.view(np.int8))

    def decode_rows(self, scale_r: Floats, body_rb: Bytes, out_rw: Floats) -> None:
        """Decode bodies and scales into `out_rw`."""
        np.copyto(out_rw, body_rb.view(np.int8))
        np.multiply(out_rw, scale_r[:, None], out=out_rw)
