"""What rules about whole vectors need: the Gram matrix of the rows, in one pass, and weighted sums, in another.

Distances, norms, projections and means of the rows are all expressions in the Gram matrix, so that a rule is a few
lines on n x n numbers and answers with one weight a row. A mixture of rows (nnm, bucketing) has the Gram matrix
W G W^T, and nothing is read again.

Digits. Models have much in common, and their differences matter: rows are centred on one of them before they are
multiplied, chunk by chunk, and the chunks are added up in float64. A centre far from the others would cost the digits
of all, and who lies may well be row 0. So the centre is settled on the first columns, and checked in the end: a row
whose ball of n - f rows is a hundred times as large (squared) as the smallest ball was no good centre, and the pass is
made again around a better one. Each liar can cause that once; every honest row is a good centre.

A row that is infinite, NaN, or so far off that squares or products overflow, is *lost*: infinitely far from all. Its
products are its own: those of other rows do not feel it. If more than f rows are lost, or all are so close that squares
underflow, the pass is made in float64, where no two fp32 numbers do either.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from p2ptrain.aggregate.base import Columns, Rows
from p2ptrain.aggregate.columns import WIDTH, Work, new_vector, parts, sweep, width_for

BLOCKS = 64
"""Parts of the columns, at most, whose products are added up apart: the result does not depend on the threads."""
PRODUCT_NUMEL = 1 << 18
"""Values in a chunk that is multiplied on a CPU: 1 MiB, a core's cache. A few columns less, since rows that are
whole pages apart fall on each other there."""
FAR = 100.0
"""A centre is left for another when its squared ball is so much larger: three or four digits of fp32's seven remain."""
TINY = 1e-30
"""Mean squared difference of a coordinate below which fp32's squares may underflow."""
CANCELLED = 1024.0
"""Rows have cancelled out in a mixture that is so many times shorter than their weighted lengths together."""
ROUNDING = 2.0**-23
"""Of a sum in fp32, for each row in it: half for the addition, half for the weight."""


@dataclass(frozen=True)
class Geometry:
    """n points. Float64 on the CPU."""

    gram_nn: torch.Tensor
    """Inner products about some common centre; 0 for lost points."""
    lost_n: torch.Tensor
    """Which points are infinitely far from all others."""

    @property
    def n(self) -> int:
        """How many points."""
        return len(self.lost_n)

    def first(self, n: int) -> "Geometry":
        """That of the first n points."""
        return Geometry(self.gram_nn[:n, :n], self.lost_n[:n])

    def squares(self) -> torch.Tensor:
        """Squared distances (n, n); infinite from and to lost points, 0 on the diagonal."""
        norm_n = self.gram_nn.diagonal()
        square_nn = (norm_n[:, None] + norm_n[None, :] - 2 * self.gram_nn).clamp_(min=0)
        square_nn[self.lost_n[:, None] | self.lost_n[None, :]] = torch.inf
        return square_nn.fill_diagonal_(0)

    def squares_to(self, share_n: torch.Tensor) -> torch.Tensor:
        """Squared distances (n,) to a point given by shares that sum to 1; infinite for lost points."""
        product_n = self.gram_nn @ share_n
        square_n = (self.gram_nn.diagonal() - 2 * product_n + share_n @ product_n).clamp_(min=0)
        return square_n.masked_fill_(self.lost_n, torch.inf)

    def closest(self, size: int) -> torch.Tensor:
        """So many points that stand close together: those of the smallest ball, its middle first."""
        return self.squares()[int(self.balls(size).argmin())].argsort(stable=True)[:size]

    def balls(self, size: int) -> torch.Tensor:
        """Squared radius (n,) of the ball about each point that holds so many points, itself included."""
        square_nn = self.squares()
        square_nn.diagonal().masked_fill_(self.lost_n, torch.inf)
        return square_nn.sort(dim=1).values[:, max(1, size) - 1]

    def mix(self, weight_mn: torch.Tensor) -> "Geometry":
        """That of m mixtures, whose weights sum to 1. Where long rows cancel out in one, fp32's rounding stays of them:
        it counts as one more distance from all."""
        lost_m = (weight_mn[:, self.lost_n] != 0).any(dim=1)
        gram_mm = weight_mn @ self.gram_nn @ weight_mn.T
        length_m = weight_mn.abs() @ self.gram_nn.diagonal().clamp(min=0).sqrt()
        cancelled_m = gram_mm.diagonal() * CANCELLED**2 < length_m.square()
        gram_mm.diagonal().add_(torch.where(cancelled_m, (self.n * ROUNDING * length_m).square(), 0))
        gram_mm[lost_m] = 0
        gram_mm[:, lost_m] = 0
        return Geometry(gram_mm, lost_m)


def measure(rows: Rows, f: int, *, origin: bool = False, own_first: bool = False) -> Geometry:
    """Return the rows' geometry; with `origin` zero is one more point, the last. With `own_first` row 0 is the
    centre."""
    if own_first:  # distances to it are exact, and gossip rules ask for no others
        geometry = _multiply(rows, 0, False, origin)
        spoilt = not TINY * rows.d < float(_ball_n(geometry, rows.n, f)[0]) < torch.inf
        return _multiply(rows, 0, True, origin) if spoilt else geometry
    head = Rows(rows.n, min(rows.d, WIDTH), rows.read)
    guess = _settle(head, f, _Choice(0, False), origin)
    return _settle(rows, f, guess.choice, origin).geometry if head.d < rows.d else guess.geometry


@dataclass(frozen=True)
class _Choice:
    centre: int
    wide: bool
    """Whether in float64."""


@dataclass(frozen=True)
class _Settled:
    choice: _Choice
    geometry: Geometry


def _settle(rows: Rows, f: int, choice: _Choice, origin: bool) -> _Settled:
    """Go over to better centres, and then to float64, until the digits are good, or as good as can be."""
    tried = {choice.centre}
    while True:
        geometry = _multiply(rows, choice.centre, choice.wide, origin)
        ball_n = _ball_n(geometry, rows.n, f)
        least = float(ball_n.min())
        central = float(ball_n[choice.centre]) <= FAR * least < torch.inf
        if central and (choice.wide or least > TINY * rows.d):
            return _Settled(choice, geometry)
        others = [] if central else [row for row in ball_n.argsort(stable=True).tolist() if row not in tried]
        if others and len(tried) <= f:
            choice = _Choice(others[0], choice.wide)
            tried.add(choice.centre)
        elif not choice.wide:
            choice = _Choice(choice.centre, True)
            tried = {choice.centre}
        else:
            return _Settled(choice, geometry)  # more than f rows are lost


def _ball_n(geometry: Geometry, n: int, f: int) -> torch.Tensor:
    """Squared radius of the ball about each row that holds n - f rows, itself included."""
    return geometry.first(n).balls(n - f)  # without the origin


def _multiply(rows: Rows, centre: int, wide: bool, origin: bool) -> Geometry:
    """One pass."""
    device = new_vector(Rows(rows.n, 0, rows.read)).device
    dtype = torch.float32 if device.type == "cpu" and not wide else torch.float64  # a GPU may multiply in TF32
    points = rows.n + origin
    width = width_for(rows, points, device)
    if device.type == "cpu":
        width = min(width, max(1, PRODUCT_NUMEL // points - 48))
    block = max(WIDTH, -(-rows.d // BLOCKS))
    cut = parts(0, rows.d, block)
    gram_bpp = torch.zeros(len(cut), points, points, dtype=torch.float64, device=device)

    def worker() -> Work:
        centred_pw = torch.empty(points, width, dtype=dtype, device=device)
        product_pp = torch.zeros(points, points, dtype=dtype, device=device)

        def work(part: slice) -> None:
            gram_pp = gram_bpp[part.start // block]
            for x_nc in _chunks(rows, part, width):
                centred_pc = centred_pw[:, : x_nc.shape[1]]
                _centre(x_nc, centre, centred_pc)
                _products(centred_pc, product_pp)
                gram_pp += product_pp

        return work

    sweep(rows, cut, worker, device)
    upper_pp = gram_bpp.sum(dim=0).cpu().triu()
    gram_pp = upper_pp + upper_pp.triu(1).T
    lost_p = ~gram_pp.diagonal().isfinite()
    _forget(gram_pp, lost_p)
    # Of rows just short of an overflow the squares may be finite, and a product, added up in another order, not.
    lost_p |= ~gram_pp.isfinite().all(dim=1)
    _forget(gram_pp, lost_p)
    return Geometry(gram_pp, lost_p)


def _forget(gram_pp: torch.Tensor, lost_p: torch.Tensor) -> None:
    """Set the products of lost points to 0, in place."""
    gram_pp[lost_p] = 0
    gram_pp[:, lost_p] = 0


def _centre(x_nc: torch.Tensor, centre: int, out_pc: torch.Tensor) -> None:
    """The rows, and zero where there is a point more, seen from row `centre`. One at a time: see columns.GRAIN."""
    centre_c = x_nc[centre].to(out_pc.dtype)
    for x_c, out_c in zip(x_nc.unbind(0), out_pc.unbind(0), strict=False):
        torch.sub(x_c.to(out_pc.dtype), centre_c, out=out_c)
    if len(out_pc) > len(x_nc):
        torch.neg(centre_c, out=out_pc[-1])


def _products(x_pc: torch.Tensor, out_pp: torch.Tensor) -> None:
    """The upper half of X X^T. On a CPU row by row: BLAS would divide a product of matrices among threads of its own,
    and wait for them while ours are at work."""
    if x_pc.device.type != "cpu":
        torch.mm(x_pc, x_pc.T, out=out_pp)
        return
    for row, x_c in enumerate(x_pc.unbind(0)):
        torch.mv(x_pc[row:], x_c, out=out_pp[row, row:])


def _chunks(rows: Rows, part: slice, width: int) -> Iterator[torch.Tensor]:
    """The columns in narrow chunks, read in wide ones: a reader may have costs of its own."""
    for wide in parts(part.start, part.stop, max(width, WIDTH)):
        x_nc = rows.read(wide)
        for chunk in parts(0, x_nc.shape[1], width):
            yield x_nc[:, chunk]


def sums(rows: Rows, share_n: torch.Tensor) -> Columns:
    """Return what gives any slice of the sum (d,) of the rows with these weights."""
    return lambda at: weighted_sum(rows.columns(at), share_n)


def weighted_sum(rows: Rows, share_n: torch.Tensor) -> torch.Tensor:
    """Return the sum (d,) of the rows with these weights. Rows of weight 0 are not looked at, whatever they hold."""
    out_d = new_vector(rows)
    chosen = [(row, share) for row, share in enumerate(share_n.tolist()) if share]

    def work(part: slice) -> None:
        out_c, x_nc = out_d[part], rows.read(part)
        out_c.zero_()
        for row, share in chosen:
            out_c.add_(x_nc[row], alpha=share)

    width = width_for(rows, 0, out_d.device)
    sweep(rows, parts(0, rows.d, width), lambda: work, out_d.device)
    return out_d
