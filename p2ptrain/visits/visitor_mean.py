"""The differences that visitors left, and the one bounded difference that a round makes of them.

Keys cost nothing, so any number of the differences may be a liar's. What holds for all of them together is one bound:
a round's mean is never longer than a share of the host's own steps. Within it, FedBuff's rule (2106.06639): differences
wait until there are enough, and count by 1 / sqrt(1 + staleness). Each is clipped, and the extremes of every coordinate
are left out, which keeps a minority of liars from using the bound up.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median_low

import numpy as np
import torch

from p2ptrain import jit
from p2ptrain.aggregate.trimmed_mean import TrimmedMean
from p2ptrain.compress.blocks import CHUNK_NUMEL, chunks
from p2ptrain.compress.int8 import Int8

DIFFERENCES = Int8()
"""The codec of visitors' differences."""

AT_ONCE = jit.WORTH // 2
"""Values of all differences that are trimmed at a time, at most: so few that no loop is compiled for them. Their number
is another one in each round, and a loop for 64 takes more time to compile than it saves in ten rounds."""


@dataclass(frozen=True, kw_only=True)
class VisitorDifference:
    """A difference that was decoded once, and is finite."""

    payload: bytes
    norm: float
    """L2 norm."""


def checked_difference(payload: bytes, numel: int) -> VisitorDifference:
    """Decode a visitor's payload. Raises PayloadError where it is no finite vector of `numel` values."""
    difference_d = DIFFERENCES.decode(payload, numel)
    norm = float(torch.linalg.vector_norm(difference_d, dtype=torch.float64))
    return VisitorDifference(payload=payload, norm=norm)


def nothing_left(numel: int) -> VisitorDifference:
    """Return a difference of zeros."""
    return VisitorDifference(payload=bytes(DIFFERENCES.size(numel)), norm=0.0)


def agreeing(differences: Sequence[VisitorDifference], own_d: torch.Tensor) -> list[bool]:
    """Return of each difference whether it goes the way of the host's own steps `own_d` (d,), or across it, and not
    against it: the sign of FLTrust's cosine (2012.13995)."""
    numel = own_d.numel()
    own = own_d.numpy()
    dots = np.zeros(len(differences))
    readers = [DIFFERENCES.reader(each.payload, numel) for each in differences]
    for chunk in chunks(numel, DIFFERENCES.block):
        x_rw = np.empty((chunk.rows, chunk.width), dtype=np.float32)
        part = own[chunk.part(DIFFERENCES.block)]
        for nth, read in enumerate(readers):
            read(chunk, x_rw)
            # In fp64: a liar's finite values could make a part infinite in fp32, and hide what the others say.
            dots[nth] += np.einsum("c,c->", x_rw.reshape(-1), part, dtype=np.float64)
    return [bool(dot >= 0) for dot in dots]


def without_opposing(mean_d: torch.Tensor, own_d: torch.Tensor) -> torch.Tensor:
    """Return `mean_d` (d,), less what of it goes against the host's own steps `own_d` (d,), taken off in place. Each
    difference may agree and the trimmed mean oppose: trimming leaves out the few large values by which they agree."""
    mean, own = mean_d.numpy(), own_d.numpy()
    dot, squares = (float(np.einsum("c,c->", own, other, dtype=np.float64)) for other in (mean, own))
    return mean_d.sub_(own_d, alpha=dot / squares) if dot < 0 else mean_d


def staleness_weight(staleness: int) -> float:
    """Return by how much a difference counts whose start is so many rounds old."""
    return 1 / math.sqrt(1 + staleness)


def visitors_mean(
    differences: Sequence[VisitorDifference],
    staleness: Sequence[int],
    *,
    numel: int,
    own_norm: float,
    share: float,
    trim: float,
) -> torch.Tensor:
    """Return the mean (numel,) of at least one difference. Its norm is at most `share` times `own_norm`.

    Each is clipped to the median norm of all and to `own_norm`, weighted by its staleness, and of each coordinate the
    `trim` part at either end is left out. The median is over what came: liars that are the majority choose it.
    """
    limit = min(median_low(each.norm for each in differences), own_norm)
    factors = [
        staleness_weight(rounds) * min(1.0, limit / each.norm if each.norm else 1.0)
        for each, rounds in zip(differences, staleness, strict=True)
    ]
    rule = TrimmedMean(f=int(trim * len(differences)))
    readers = [DIFFERENCES.reader(each.payload, numel) for each in differences]
    mean_d = torch.empty(numel, dtype=torch.float32)
    for chunk in chunks(numel, DIFFERENCES.block, min(CHUNK_NUMEL, AT_ONCE // len(differences))):
        x_nrw = np.empty((len(differences), chunk.rows, chunk.width), dtype=np.float32)
        for read, factor, x_rw in zip(readers, factors, x_nrw, strict=True):
            read(chunk, x_rw)
            np.multiply(x_rw, np.float32(factor), out=x_rw)
        mean_d[chunk.part(DIFFERENCES.block)] = rule(torch.from_numpy(x_nrw.reshape(len(differences), -1)))
    return clipped_to(mean_d, share * own_norm)


def clipped_to(x_d: torch.Tensor, most: float) -> torch.Tensor:
    """Return `x_d` (d,) shortened in place to the norm `most`, where it is longer."""
    norm = float(torch.linalg.vector_norm(x_d, dtype=torch.float64))
    return x_d if norm <= most else x_d.mul_(most / norm)
