"""Sixteen bits a value: fp16 and bf16, little-endian, with no scale.

Which one: fp16 where the values' size is known (it keeps 11 bits of values from 6e-5 to 65,504), bf16 otherwise. Small
differences of models often lie below 6e-5, where fp16 loses a bit with each halving, and below 3e-8 everything.
"""

import numpy as np
import torch

from p2ptrain.compress.blocks import check_length, check_vector
from p2ptrain.compress.dense import refuse_nonfinite
from p2ptrain.compress.payload_layout import Buffer, PayloadLayout
from p2ptrain.compress.pool import for_each

HALF_BYTES = 2
CHUNK_NUMEL = 1 << 15
"""Values converted at a time: the most that torch does without threads of its own, which would add to ours."""


class _Half:
    dtype: torch.dtype

    def encode(self, x_d: torch.Tensor) -> bytes:
        """Encode an fp32 vector (d,)."""
        value_d = check_vector(x_d)
        wire_d = np.empty(value_d.size, dtype=np.int16)
        half_d = torch.from_numpy(wire_d).view(self.dtype)
        largest = torch.finfo(self.dtype).max

        def encode_part(start: int) -> None:
            part = slice(start, start + CHUNK_NUMEL)
            value_p = value_d[part]
            if not (-largest <= value_p.min() and value_p.max() <= largest):
                value_p = np.where(np.isfinite(value_p), value_p.clip(-largest, largest), value_p)
            half_d[part] = torch.from_numpy(value_p)

        for_each(encode_part, range(0, value_d.size, CHUNK_NUMEL))
        return wire_d.astype("<i2", copy=False).tobytes()

    def decode(self, payload: bytes | memoryview, numel: int) -> torch.Tensor:
        """Decode to fp32 (numel,). Raises PayloadError."""
        wire_d = check_length(payload, HALF_BYTES * numel).view("<i2")
        out_d = np.empty(numel, dtype=np.float32)
        x_d = torch.from_numpy(out_d)

        def decode_part(start: int) -> None:
            part = slice(start, start + CHUNK_NUMEL)
            x_d[part] = torch.from_numpy(wire_d[part].astype(np.int16)).view(self.dtype)
            refuse_nonfinite(out_d[part])

        for_each(decode_part, range(0, numel, CHUNK_NUMEL))
        return x_d

    def payload_layout(self, payload: Buffer | None = None) -> PayloadLayout:
        """Return that of values in a row."""
        return PayloadLayout(1, (lambda numel: HALF_BYTES * numel,))


class Fp16(_Half):
    """IEEE 754 half precision, rounded to nearest; finite values beyond +-65,504 become +-65,504.

    Source: IEEE 754-2008, binary16.
    Guarantee: no error is above its value, up to 65,504; above 6e-5 none is beyond 2^-11 of it. 5e-8 ||x||^2 is left of
    a Gaussian of size 1, more of a smaller one.
    Cost: 16 bits a parameter.
    """

    name = "fp16"
    contraction = 0.999999
    gamma = 1.0
    dtype = torch.float16


class Bf16(_Half):
    """bfloat16, the upper half of fp32, rounded to nearest; finite values beyond the largest become the largest.

    Source: Kalamkar et al., "A study of bfloat16 for deep learning training" (1905.12322).
    Guarantee: no error is beyond 2^-8 of its value, from the smallest normal fp32 on, and none above it below.
    Cost: 16 bits a parameter.
    """

    name = "bf16"
    contraction = 0.99999
    gamma = 1.0
    dtype = torch.bfloat16
