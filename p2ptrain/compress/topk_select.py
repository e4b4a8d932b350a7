"""Where the k largest values of each row are: exact, though most of a row is ruled out by a guess.

A sample of the row gives a size that surely more than k values reach, though not many more. Only those that do are
partitioned: a fifth of the values for a k of a tenth. Where that cannot be, all are, as whole numbers whose lower bits
are their places. That takes four times as long, but so for any row: the partition of plain sizes was 25 times slower
where most are equal, as in a vector of which little has changed. Both ways give the same places.
"""

import numpy as np
import numpy.typing as npt

from p2ptrain.compress.blocks import Floats
from p2ptrain.compress.rows import scratch

Places = npt.NDArray[np.intp]
Sizes = npt.NDArray[np.int32]
"""The bits of positive floats: as whole numbers they have the floats' order, and NaN has a place in it, above all."""

SAMPLE = 256
"""Values of a row that the guess is made from: so few sort in a microsecond, and miss by a few percent of the row."""
PLACE_BITS = 12
"""Rows have at most 4,096 values."""
SIGN_OFF = np.int32(0x7FFFFFFF)


def largest_places(x_rw: Floats, kept: int) -> Places:
    """(rows, kept), rising: where each row is largest in size, as places in the flattened rows.

    Of equal sizes the first ones; NaN is larger than all.
    """
    size_rw = np.bitwise_and(x_rw.view(np.int32), SIGN_OFF, out=scratch("size", x_rw.shape, np.int32))
    flat_n = _by_sample(size_rw, kept)
    if flat_n is None:
        flat_n = _by_key(size_rw, kept)
    return flat_n.reshape(-1, kept)


def _by_sample(size_rw: Sizes, kept: int) -> Places | None:
    """Places in the flattened rows; None where a sample cannot help, where it misled, and where values are equal."""
    rows, width = size_rw.shape
    stride = width // SAMPLE
    expected = kept / stride if stride else 0.0
    rank = int(expected + 3 * expected**0.5) + 2  # three deviations below what would be just enough
    if stride < 2 or rank > SAMPLE // 2:
        return None
    sample_rs = np.sort(size_rw[:, : SAMPLE * stride : stride], axis=1)
    if (sample_rs[:, -rank:] == sample_rs[:, -rank - 3 : -3]).any():
        return None  # four equal ones in the sample: dozens in the row
    reached_rw = scratch("chosen", size_rw.shape, np.bool_)
    np.greater_equal(size_rw, sample_rs[:, -rank, None], out=reached_rw)
    flat_n = np.flatnonzero(reached_rw)
    count_r = np.diff(np.searchsorted(flat_n, np.arange(0, (rows + 1) * width, width)))
    if count_r.min() < kept or count_r.max() > width // 2:
        return None
    size_n = size_rw.reshape(-1).take(flat_n)
    least_r = _least_kept(size_n, count_r, kept)
    chosen_n = flat_n.compress(size_n >= least_r.repeat(count_r))
    return chosen_n if chosen_n.size == rows * kept else None


def _least_kept(size_n: Sizes, count_r: Places, kept: int) -> Sizes:
    """The `kept`-th largest of each row's candidates, of which there are `count_r`, one row after the other."""
    most = int(count_r.max())
    padded_rc = np.full((count_r.size, most), -1, dtype=np.int32)
    padded_rc[np.arange(most) < count_r[:, None]] = size_n
    padded_rc.partition(most - kept, axis=1)
    return padded_rc[:, most - kept]


def _by_key(size_rw: Sizes, kept: int) -> Places:
    """Places in the flattened rows, by whole numbers that hold a size and, below it, how early its place is."""
    width = size_rw.shape[1]
    key_rw = scratch("key", size_rw.shape, np.int64)
    np.left_shift(size_rw, PLACE_BITS, out=key_rw, dtype=np.int64)
    key_rw |= np.arange(width)[::-1]
    sorted_rw = scratch("sorted", size_rw.shape, np.int64)
    np.copyto(sorted_rw, key_rw)
    sorted_rw.partition(width - kept, axis=1)
    return np.flatnonzero(key_rw >= sorted_rw[:, width - kept, None])
