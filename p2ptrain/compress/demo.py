"""Demo: the discrete cosine transform of each 64 x 64 parameters, then the largest of its coefficients (`topk`).

    payload = shift           1 byte, see transform.py
              inner payload   of topk, on the d coefficients

A block of 4,096 consecutive parameters is read as 64 rows of 64 and turned along both; the rest, in smaller powers of
two 2^k, as 2^ceil(k/2) rows. `dct.py` has the transform, and why every machine turns back to the same bits.
"""

from functools import lru_cache

from p2ptrain.compress.base import Compressor
from p2ptrain.compress.blocks import Floats
from p2ptrain.compress.dct import MAX_WIDTH, dct2, dct3, sizes
from p2ptrain.compress.topk import TopK
from p2ptrain.compress.transform import BlockTransform, along_both_axes

RATIO = 1 / 32
"""DeMo keeps 32 of 4,096 and lets momentum carry the rest; four times as many bring a resting vector over whole within
tens of rounds. The paper's is `demo+topk` with `ratio = 0.0078125`."""
VALUE_BITS = 4
"""0.51 bits a parameter in all; 8 would cost 0.12 more and keep less than 0.01 of the energy more."""


class Demo(BlockTransform):
    """DCT-II of 64 x 64 blocks before the codec within, which is topk unless the name says otherwise.

    Source: DeMo (2411.19870) for the transform and the top-k of its coefficients. Its momentum, a form of error
    feedback, is left to the caller: the tracked estimate, or `ErrorFeedback`.
    Guarantee: that of the codec within, since the transform keeps lengths.
    Cost: 1 byte a payload beside topk's; about 25 copies of the vector each way, and topk's own.
    """

    stage = "demo"
    block = MAX_WIDTH * MAX_WIDTH

    def __init__(self, inner: Compressor | None = None) -> None:
        super().__init__(inner or TopK(ratio=RATIO, value_bits=VALUE_BITS))

    def forward(self, x_rw: Floats, y_rw: Floats) -> None:
        """Transform rows `x_rw` into `y_rw`."""
        along_both_axes(x_rw, y_rw, dct2, after_w=_factors(x_rw.shape[1]))

    def backward(self, y_rw: Floats, x_rw: Floats) -> None:
        """Transform rows `y_rw` back into `x_rw`."""
        along_both_axes(y_rw, x_rw, dct3, before_w=_factors(y_rw.shape[1]))


@lru_cache(maxsize=16)
def _factors(width: int) -> Floats:
    across = 1 << (width.bit_length() - 1) // 2
    factor_w = sizes(width // across, across)
    factor_w.flags.writeable = False
    return factor_w
