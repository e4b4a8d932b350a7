"""Arithmetic on rows that several codecs need: scratch memory, sums, a common magnitude, tables of a byte's values.

All of it works on rows of their own: what a row gives does not depend on its neighbours in a chunk. Sums and products
are for encoders only, since their last bit may differ between machines.
"""

import math
import threading
from typing import Any

import numpy as np
import numpy.typing as npt

from p2ptrain.compress.blocks import Bytes, Floats, S

LARGE = 2.0**40
"""Sizes between 1 / LARGE and LARGE can be squared and summed in fp32 without a loss."""

MAX_VIEWS = 64
"""Views of scratch memory that a thread remembers: a codec has some five names, and chunks of two shapes."""


class _Scratch(threading.local):
    def __init__(self) -> None:
        self.buffers: dict[str, Bytes] = {}
        self.views: dict[tuple[str, tuple[int, ...], type], npt.NDArray[Any]] = {}
        """Of the buffers. To cut one anew costs as much as an operation on a small model's row."""


_scratch = _Scratch()


def scratch(name: str, shape: tuple[int, ...], dtype: type[S]) -> npt.NDArray[S]:
    """Memory of this thread, its content undefined, valid until the thread asks for `name` again.

    Temporaries of a chunk's size that are made anew go back to the system each time, and cost more than the arithmetic.
    """
    view = _scratch.views.get((name, shape, dtype))
    if view is None:
        view = _scratch.views[name, shape, dtype] = _cut(name, shape, dtype)
    return view


def _cut(name: str, shape: tuple[int, ...], dtype: type[S]) -> npt.NDArray[S]:
    size = math.prod(shape) * np.dtype(dtype).itemsize
    buffer = _scratch.buffers.get(name)
    if buffer is None or buffer.size < size:
        buffer = _scratch.buffers[name] = np.empty(size, dtype=np.uint8)
        _scratch.views = {key: view for key, view in _scratch.views.items() if key[0] != name}
    if len(_scratch.views) >= MAX_VIEWS:
        _scratch.views.clear()
    return buffer[:size].view(dtype).reshape(shape)


def row_sums(x_rw: Floats) -> Floats:
    """(rows,) sums. `einsum` adds in the processor's wide registers; `sum` does not."""
    sum_r: Floats = np.einsum("rw->r", x_rw)
    return sum_r


def row_dots(x_rw: Floats, y_rw: Floats) -> Floats:
    """(rows,) inner products."""
    dot_r11: Floats = np.matmul(x_rw[:, None, :], y_rw[:, :, None])
    return dot_r11[:, 0, 0]


def comparable(size_rw: Floats) -> tuple[Floats, Floats]:
    """Sizes times a power of two for each row, in place, such that they can be squared; and the powers (rows,).

    Nearly all rows keep their sizes: the power is 1. Rows that are not finite do, too.
    """
    peak_r = size_rw.max(axis=1)
    unit_r = np.ones_like(peak_r)
    if peak_r.min() >= 1 / LARGE and peak_r.max() <= LARGE:
        return size_rw, unit_r
    odd_r = (peak_r > 0) & (peak_r < np.inf) & ((peak_r < 1 / LARGE) | (peak_r > LARGE))
    if odd_r.any():
        exponent_r = np.frexp(peak_r[odd_r])[1].clip(-126, 126)  # beyond, the power itself would be denormal
        unit_r[odd_r] = np.ldexp(np.float32(1), -exponent_r)
        size_rw *= unit_r[:, None]
    return size_rw, unit_r


def look_up(table: Floats, body_rb: Bytes, out_rw: Floats) -> None:
    """Write the values that each byte stands for, `table[byte]`, to the rows; those beyond their width are left out."""
    rows, width = out_rw.shape
    if width % table.shape[1]:
        out_rw[:] = table.take(body_rb, axis=0).reshape(rows, -1)[:, :width]
    else:
        # The mode changes nothing (no byte is outside), but spares `take` a buffer in place of `out`.
        index_rb = scratch("index", body_rb.shape, np.intp)
        np.copyto(index_rb, body_rb)
        np.take(table, index_rb.reshape(-1), axis=0, out=out_rw.reshape(-1, table.shape[1]), mode="wrap")
