"""Four bits: sixteen levels between plus and minus the largest size of each 256 parameters, two values a byte.

    payload = format                 1 byte: which levels, the index of a name in FORMATS
              scale[0] .. scale[B-1] 4 bytes each: the block's largest size, as in blocks.py
              body[0]  .. body[B-1]  a code of 4 bits each, the first of a byte in its low bits

error^2 / x^2 over blocks of 64, 256 and 1,024 (4.5, 4.125 and 4.03 bits), 2^20 values by distribution, the last with
another scale, from a lognormal, for each 64 parameters:

| levels  | Gaussian          | Laplace           | Student, 3        | mixed scales      |
|---------|-------------------|-------------------|-------------------|-------------------|
| nf4     | .0084 .0097 .0109 | .0108 .0152 .0207 | .0150 .0338 .0752 | .0084 .0150 .0308 |
| uniform | .0116 .0160 .0204 | .0198 .0322 .0479 | .0324 .0755 .1591 | .0117 .0268 .0602 |
| e3m0    | .0354 .0379 .0383 | .0317 .0360 .0376 | .0242 .0294 .0334 | .0357 .0363 .0375 |

So nf4 is the default. The sixteen levels that are best for a Gaussian of known size (Lloyd-Max, at the rms) leave .0094
of one, but .14 of Student's, in blocks of 1,024.
"""

from typing import Annotated

import numpy as np
import torch

from p2ptrain.compress.base import PayloadError
from p2ptrain.compress.blocks import FLOAT_TINY, BlockCodec, Bytes, Decoding, Floats, ReadPart
from p2ptrain.compress.payload_layout import Buffer, PayloadLayout
from p2ptrain.compress.rows import look_up, scratch

PER_BYTE = 2
HEADER_BYTES = 1

_NF4 = (
    -1.0,
    -0.6961928009986877,
    -0.5250730514526367,
    -0.39491748809814453,
    -0.28444138169288635,
    -0.18477343022823334,
    -0.09105003625154495,
    0.0,
    0.07958029955625534,
    0.16093020141124725,
    0.24611230194568634,
    0.33791524171829224,
    0.44070982933044434,
    0.5626170039176941,
    0.7229568362236023,
    1.0,
)
_EVEN = (*(whole / 7 for whole in range(-7, 8)), 0.0)
_POWERS = (*(-(2.0**-e) for e in range(7)), 0.0, *(2.0**-e for e in range(6, -1, -1)), 0.0)
LEVELS = {
    name: np.array(levels, dtype=np.float32) for name, levels in (("nf4", _NF4), ("uniform", _EVEN), ("e3m0", _POWERS))
}
"""By format: what the 16 codes stand for, in largest sizes. They rise; uniform and e3m0 have no use for the last."""
FORMATS = tuple(LEVELS)
CONTRACTIONS = {"nf4": 0.985, "uniform": 0.975, "e3m0": 0.96}
_BYTE = np.arange(256)
_TABLES = {name: np.stack([levels[_BYTE & 15], levels[_BYTE >> 4]], axis=1) for name, levels in LEVELS.items()}
"""(256, 2): the values that each byte stands for."""


class Int4:
    """Block-wise absolute-maximum quantization to 4 bits. `format`: nf4, uniform or e3m0 (receivers read all three).

    Source: nf4: QLoRA (2305.14314), the levels of its appendix, equal shares of a Gaussian's values; e3m0: the outer
    gradients of Streaming DiLoCo (2501.18512), a sign and powers of two down to 1/64, then 0; uniform: 15 even steps.
    Guarantee: each value becomes the nearest level, of which 0 is one, so no error is above its value, nor above 0.16
    (nf4), 0.08 (uniform) or 0.25 (e3m0) of the block's largest size.
    Cost: 4.125 bits a parameter.
    """

    name = "int4"
    gamma = 1.0

    def __init__(
        self, *, format: Annotated[str, "Levels of each value that travels: nf4, uniform or e3m0."] = "nf4"
    ) -> None:
        if format not in LEVELS:
            raise ValueError(f"int4: format must be one of {', '.join(FORMATS)}, not {format!r}")
        self.format = format
        self.contraction = CONTRACTIONS[format]

    def encode(self, x_d: torch.Tensor) -> bytes:
        """Encode an fp32 vector (d,)."""
        return bytes([FORMATS.index(self.format)]) + _Int4Rows(self.format).encode(x_d)

    def encode_from(self, read: ReadPart, numel: int) -> bytes:
        """`encode` for a vector that is read by parts."""
        return bytes([FORMATS.index(self.format)]) + _Int4Rows(self.format).encode_from(read, numel)

    def decode(self, payload: bytes | memoryview, numel: int) -> torch.Tensor:
        """Decode to fp32 (numel,). Raises PayloadError."""
        rows, body = _opened(payload)
        return rows.decode(body, numel)

    def decoding(self, payload: bytes | memoryview, numel: int) -> Decoding:
        """`decode` by parts. Raises PayloadError, now or when called."""
        rows, body = _opened(payload)
        return rows.decoding(body, numel)

    def payload_layout(self, payload: Buffer | None = None) -> PayloadLayout:
        """Return that of the blocks, behind the format."""
        return _Int4Rows(self.format).payload_layout().behind(HEADER_BYTES)


def _opened(payload: bytes | memoryview) -> "tuple[_Int4Rows, memoryview]":
    """Return the rows and their bytes."""
    view = memoryview(payload)
    if view.nbytes < HEADER_BYTES:
        raise PayloadError("wrong_shape", "payload without a header")
    if view[0] >= len(FORMATS):
        raise PayloadError("malformed", f"format {view[0]} of {len(FORMATS)}")
    return _Int4Rows(FORMATS[view[0]]), view[HEADER_BYTES:]


class _Int4Rows(BlockCodec):
    block = 256

    def __init__(self, format: str) -> None:
        level_l = LEVELS[format][: 16 if format == "nf4" else 15]
        self._threshold_t = (level_l[1:] + level_l[:-1]) / 2
        self._table = _TABLES[format]

    def body_bytes(self, width: int) -> int:
        return -(-width // PER_BYTE)

    def encode_rows(self, x_rw: Floats, body_rb: Bytes) -> Floats:
        peak_r: Floats = np.maximum(x_rw.max(axis=1), -x_rw.min(axis=1))
        usable_r = np.isfinite(peak_r) & (peak_r >= FLOAT_TINY)
        part_rw = scratch("part", x_rw.shape, np.float32)
        np.divide(x_rw, np.where(usable_r, peak_r, np.float32(1))[:, None], out=part_rw)
        if not usable_r.all():
            part_rw[~usable_r] = 0
        _pack(self._codes(part_rw), body_rb)
        return peak_r

    def decode_rows(self, scale_r: Floats, body_rb: Bytes, out_rw: Floats) -> None:
        look_up(self._table, body_rb, out_rw)
        np.multiply(out_rw, scale_r[:, None], out=out_rw)

    def _codes(self, part_rw: Floats) -> Bytes:
        """How many of the thresholds each value reaches: fifteen comparisons are faster than one search."""
        code_rw = scratch("code", part_rw.shape, np.uint8)
        code_rw.fill(0)
        reached_rw = scratch("reached", part_rw.shape, np.bool_)
        for threshold in self._threshold_t:
            np.greater_equal(part_rw, threshold, out=reached_rw)
            np.add(code_rw, reached_rw.view(np.uint8), out=code_rw)
        return code_rw


def _pack(code_rw: Bytes, body_rb: Bytes) -> None:
    if code_rw.shape[1] % PER_BYTE:
        code_rw = np.pad(code_rw, ((0, 0), (0, 1)))
    pair_rb = code_rw.view("<u2")
    np.copyto(body_rb, pair_rb | pair_rb >> 4, casting="unsafe")  # the upper half of each pair is cut off
