"""No compression: the vector's own bytes. The reference that every other codec is measured against."""

import numpy as np
import torch

from p2ptrain.compress.base import PayloadError
from p2ptrain.compress.blocks import CHUNK_NUMEL, Floats, check_length, check_vector
from p2ptrain.compress.payload_layout import Buffer, PayloadLayout
from p2ptrain.compress.pool import for_each

FP32_BYTES = 4


class Dense:
    """fp32 little-endian.

    Guarantee: exact (contraction 1).
    Cost: 32 bits a parameter; one copy either way.
    """

    name = "none"
    contraction = 1.0
    gamma = 1.0

    def encode(self, x_d: torch.Tensor) -> bytes:
        """Encode an fp32 vector (d,)."""
        return check_vector(x_d).astype("<f4", copy=False).tobytes()

    def decode(self, payload: bytes | memoryview, numel: int) -> torch.Tensor:
        """Decode to fp32 (numel,). Raises PayloadError."""
        wire_d = check_length(payload, FP32_BYTES * numel).view("<f4")
        x_d = np.empty(numel, dtype=np.float32)

        def decode_part(start: int) -> None:
            part = slice(start, start + CHUNK_NUMEL)
            x_d[part] = wire_d[part]
            refuse_nonfinite(x_d[part])

        for_each(decode_part, range(0, numel, CHUNK_NUMEL))
        return torch.from_numpy(x_d)

    def payload_layout(self, payload: Buffer | None = None) -> PayloadLayout:
        """Return that of values in a row."""
        return PayloadLayout(1, (lambda numel: FP32_BYTES * numel,))


def refuse_nonfinite(x_d: Floats) -> None:
    """PayloadError `nonfinite` unless all is finite. The extremes tell (NaN wins either), and need no temporary."""
    if not (np.isfinite(x_d.min()) and np.isfinite(x_d.max())):
        raise PayloadError("nonfinite", "a value is not a finite number")
