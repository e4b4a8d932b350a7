"""PowerSGD: the vector as a near-square matrix, and of that a product of two thin ones, warm-started from the last.

    payload = rank r          2 bytes, little-endian, 1..32, at most the shorter side
              columns n       4 bytes, 1..d; rows m = ceil(d / n), the last one filled up with zeros
              scale[0..r-1]   4 bytes each, fp32
              left[0..r-1]    m values of 2 bytes each: fp16, at most 1 in size
              right[0..r-1]   n values of 2 bytes each: fp16, at most 1 in size

    value[i, j] = left[0, i] * (scale[0] * right[0, j]) + left[1, i] * (scale[1] * right[1, j]) + ...

with each product and each sum rounded to fp32, in this order. Scales sum to half the largest fp32 at most, so that no
value overflows. The encoder takes one step of power iteration: left = orthonormalized M right, right = M^T left.

The memory is the right factor. Under a tracked estimate, which has what was sent, the rest M of a vector that stands
still has nothing left along it; so a column that sees less of M than a random one would on average is drawn anew.
"""

import math
import struct
from typing import Annotated

import numpy as np
import numpy.typing as npt
import torch

from p2ptrain.compress.base import PayloadError, State, gamma_for
from p2ptrain.compress.blocks import CHUNK_NUMEL, FLOAT_MAX, FLOAT_TINY, Bytes, Floats, check_length, check_vector
from p2ptrain.compress.pool import for_each
from p2ptrain.compress.splitmix import signs
from p2ptrain.compress.stage import counter, cut_header

Halves = npt.NDArray[np.float16]

HEADER = struct.Struct("<HI")
MAX_RANK = 32
"""Decoding costs a pass over the vector for each rank, however small the payload: this bounds a liar's demands."""
LARGEST_SCALE_SUM = FLOAT_MAX / 2
ONE = 0x3C00
"""The bits of 1.0 in fp16: sizes have the order of their bits."""
LEAST_CONTRACTION = 1e-3
"""Claimed before the first payload, and for one that keeps next to nothing: rank 4 of a Gaussian of 64 million."""
KEPT_SHARE = 0.95
"""Of what a payload keeps: the rest is for fp16's rounding, and for the next one to be a little worse."""
LOST = 1e-6
"""A column with less than this of its length left, after what others have of it is taken away, is rounding noise."""


class PowerSGD:
    """Rank `rank` of the vector as a matrix.

    Source: Vogels et al. (1905.13727): warm start, one power iteration, Gram-Schmidt. The vector is cut into rows of
    `columns`, near-square if 0; layers are not known here, but rows as long as the layers' keep their rank low.
    Guarantee: left is orthonormal but for fp16's rounding, so ||error||^2 <= ||x||^2 for every vector; a random matrix
    of side n keeps 2 rank / n of its energy, what training makes far more.
    Cost: 16 rank (m + n) bits; two products of the matrix with rank columns, and rank passes to decode: with rank 4 18
    and 4 copies of the vector.
    """

    name = "powersgd"

    def __init__(
        self,
        *,
        rank: Annotated[int, "Of the factors that travel: more is finer."] = 4,
        columns: Annotated[int, "Of the matrix that the vector is written in; 0: as many as it has rows."] = 0,
    ) -> None:
        if not 1 <= rank <= MAX_RANK:
            raise ValueError(f"powersgd: rank must be in [1, {MAX_RANK}], not {rank}")
        if not 0 <= columns < 1 << 32:
            raise ValueError(f"powersgd: columns must be in [0, 2^32), not {columns}")
        self.rank = rank
        self.columns = columns
        self.reset()

    @property
    def contraction(self) -> float:
        """Nearly what the last payload kept: it depends on the side and on the matrix far too much to be one number."""
        return self._contraction

    @property
    def gamma(self) -> float:
        """By gamma_for, so that it follows what payloads keep."""
        return gamma_for(self._contraction)

    def gamma_of(self, payload: bytes | memoryview) -> None:
        """Return None: what the encoder's payloads keep is not told."""
        return

    def encode(self, x_d: torch.Tensor) -> bytes:
        """Encode an fp32 vector (d,)."""
        value_d = check_vector(x_d)
        columns = min(self.columns or math.isqrt(value_d.size - 1) + 1, value_d.size)
        rows = -(-value_d.size // columns)
        rank = min(self.rank, columns, rows)
        peak = float(max(-value_d.min(), value_d.max()))
        if FLOAT_TINY <= peak < math.inf:
            return self._encode(_matrix(value_d, columns, peak), rank, peak)
        scale_r = np.full(rank, 0.0 if peak < FLOAT_TINY else math.nan)
        return _pack(scale_r, np.zeros((rank, rows), np.float16), np.zeros((rank, columns), np.float16))

    def decode(self, payload: bytes | memoryview, numel: int) -> torch.Tensor:
        """Decode to fp32 (numel,). Raises PayloadError."""
        header, rest = cut_header(payload, HEADER.size)
        rank, columns = HEADER.unpack(header)
        if not 1 <= rank <= MAX_RANK or columns == 0:
            raise PayloadError("malformed", f"rank {rank} of {columns} columns")
        rows = -(-numel // columns)
        if columns > numel or rank > min(rows, columns):
            raise PayloadError("wrong_shape", f"rank {rank} of {columns} columns for {numel} parameters")
        raw = check_length(rest, 4 * rank + 2 * rank * (rows + columns))
        scale_r = _scales(raw[: 4 * rank])
        factor = _factors(raw[4 * rank :])
        left_rm = factor[: rank * rows].reshape(rank, rows)
        right_rn = factor[rank * rows :].reshape(rank, columns) * scale_r[:, None]
        return torch.from_numpy(_product(left_rm, right_rn, numel))

    def state_dict(self) -> State:
        """Return the memory for a checkpoint: `right` (n, rank), and how many columns were ever `drawn`."""
        return {"right": self._right_nr.clone(), "drawn": torch.tensor(self._drawn, device="cpu")}

    def load_state_dict(self, state: State) -> None:
        """Take up `state_dict`. ValueError when it is of another codec."""
        if state.keys() != {"right", "drawn"} or state["right"].dim() != 2 or not state["right"].isfinite().all():
            raise ValueError("this is no state of 'powersgd'")
        self._drawn = counter(state["drawn"])
        self._right_nr = state["right"].to(torch.float32).clone()

    def reset(self) -> None:
        """Forget: the next payload is as the first one of a new encoder."""
        self._right_nr = torch.zeros(0, 0, device="cpu", dtype=torch.float32)
        self._drawn = 0
        self._contraction = LEAST_CONTRACTION

    def _encode(self, matrix_mn: torch.Tensor, rank: int, peak: float) -> bytes:
        left_mr = _orthonormal(self._seen(matrix_mn, rank).double().numpy())
        left_rm, _ = _halves(left_mr.T)
        back_mr = torch.from_numpy(left_rm.T.astype(np.float32))
        length_r = back_mr.square().sum(dim=0)
        right_nr = (matrix_mn.T @ back_mr) / length_r.clamp(min=FLOAT_TINY)
        kept = float((right_nr.square().sum(dim=0) * length_r).sum() / torch.linalg.vector_norm(matrix_mn).square())
        self._contraction = min(max(KEPT_SHARE * kept, LEAST_CONTRACTION), 1.0)
        self._right_nr = torch.nn.functional.normalize(right_nr, dim=0)
        right_rn, size_r = _halves(right_nr.double().numpy().T)
        return _pack(_bounded(size_r * peak), left_rm, right_rn)

    def _seen(self, matrix_mn: torch.Tensor, rank: int) -> torch.Tensor:
        """M right, (m, rank): of the last right factor, and of random columns where those see more."""
        columns = matrix_mn.shape[1]
        warm = self._right_nr.shape == (columns, rank)
        right_nr = self._right_nr.clone() if warm else torch.zeros(columns, rank, device="cpu", dtype=torch.float32)
        left_mr = matrix_mn @ right_nr
        weak_r = left_mr.square().sum(dim=0) <= torch.linalg.vector_norm(matrix_mn).square() / columns
        if bool(weak_r.any()):
            count = int(weak_r.sum())
            fresh = [signs(self._drawn + i, columns) / np.float32(math.sqrt(columns)) for i in range(count)]
            left_mr[:, weak_r] = matrix_mn @ torch.from_numpy(np.stack(fresh, axis=1))
            self._drawn += count
        return left_mr


def _matrix(value_d: Floats, columns: int, peak: float) -> torch.Tensor:
    """The vector over its largest size, as a matrix whose last row is filled up with zeros: no square overflows."""
    rows = -(-value_d.size // columns)
    flat = torch.zeros(rows * columns, device="cpu", dtype=torch.float32)
    np.divide(value_d, np.float32(peak), out=flat.numpy()[: value_d.size])
    return flat.view(rows, columns)


def _orthonormal(left_mr: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Gram-Schmidt, twice each ("twice is enough", Parlett); columns that others span become zero."""
    for k in range(left_mr.shape[1]):
        column_m, others_mk = left_mr[:, k], left_mr[:, :k]
        whole = np.linalg.norm(column_m)
        for _ in range(2):
            column_m = column_m - others_mk @ (others_mk.T @ column_m)
        left = np.linalg.norm(column_m)
        left_mr[:, k] = column_m / left if left > LOST * whole else 0
    return left_mr


def _halves(factor_rw: npt.NDArray[np.float64]) -> tuple[Halves, npt.NDArray[np.float64]]:
    """Each row over its largest size, as fp16, and these sizes (rank,)."""
    size_r = np.abs(factor_rw).max(axis=1)
    return (factor_rw / np.where(size_r > 0, size_r, 1)[:, None]).astype(np.float16), size_r


def _bounded(scale_r: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Scales made smaller together where they sum to too much: a shorter projection is still nearer than nothing."""
    scale_r = scale_r * min(1.0, 0.999 * LARGEST_SCALE_SUM / max(float(scale_r.sum()), FLOAT_TINY))
    return np.where(scale_r < FLOAT_TINY, 0.0, scale_r)


def _pack(scale_r: npt.NDArray[np.float64], left_rm: Halves, right_rn: Halves) -> bytes:
    header = HEADER.pack(scale_r.size, right_rn.shape[1])
    factors = [factor.astype("<f2", copy=False).tobytes() for factor in (left_rm, right_rn)]
    return b"".join([header, scale_r.astype("<f4").tobytes(), *factors])


def _scales(raw: Bytes) -> Floats:
    scale_r = raw.view("<f4").astype(np.float32)
    if not np.isfinite(scale_r).all() or scale_r.sum(dtype=np.float64) > LARGEST_SCALE_SUM:
        raise PayloadError("nonfinite", "scales that are no finite numbers, or sum to too much")
    if (scale_r < 0).any():
        raise PayloadError("malformed", "a scale is negative")
    return scale_r


def _factors(raw: Bytes) -> Floats:
    bits = raw.view("<u2") & 0x7FFF
    if bits.max() > ONE:
        raise PayloadError("malformed", "a factor's value is above 1, or no number")
    return raw.view("<f2").astype(np.float32)


def _product(left_rm: Floats, right_rn: Floats, numel: int) -> Floats:
    """The module's sum, in its order, a chunk of rows at a time."""
    columns = right_rn.shape[1]
    step, whole = max(1, CHUNK_NUMEL // columns), numel // columns
    out_d = np.empty(numel, dtype=np.float32)

    def fill(row: int) -> None:
        end = min(row + step, whole)
        _outer(left_rm[:, row:end], right_rn, out_d[row * columns : end * columns].reshape(end - row, columns))

    for_each(fill, range(0, whole, step))
    if rest := numel - whole * columns:
        _outer(left_rm[:, whole:], right_rn[:, :rest], out_d[whole * columns :].reshape(1, rest))
    return out_d


def _outer(left_rc: Floats, right_rw: Floats, out_cw: Floats) -> None:
    np.multiply(left_rc[0][:, None], right_rw[0], out=out_cw)
    term_cw = np.empty_like(out_cw)
    for left_c, right_w in zip(left_rc[1:], right_rw[1:], strict=True):
        np.multiply(left_c[:, None], right_w, out=term_cw)
        out_cw += term_cw
