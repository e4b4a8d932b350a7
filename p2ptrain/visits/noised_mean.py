"""The mean of visitors' differences that hides what each of them left: user-level differential privacy.

DP-FedAvg's sum (McMahan et al., 1710.06963) over a buffer of one size, which FedBuff's weights only shorten:

    ( sum over K visitors of  w min(1, C / ||x||) x   +   N(0, (z C)^2) in each coordinate ) / K

Nothing in it depends on the others' differences but the sum: no median norm, no trimming. So one visitor's part is C at
most, and a liar's is no more. Which visitors come, and when, is not hidden: neighbouring are two runs in which the same
ones come, and one of them leaves zeros in place of what it has (the zero-out relation of 2103.00039).
"""

from collections.abc import Sequence

import numpy as np
import torch

from p2ptrain.compress.blocks import chunks
from p2ptrain.privacy.base import NormalSource, Privatizer
from p2ptrain.visits.visitor_mean import DIFFERENCES, VisitorDifference


def noised_mean(
    differences: Sequence[VisitorDifference],
    weights: Sequence[float],
    *,
    numel: int,
    privatizer: Privatizer,
    source: NormalSource,
) -> torch.Tensor:
    """Return the mean (numel,), fp32, of at least one difference, with the privatizer's clipping and noise. A weight is
    from 0 to 1, and depends on no other visitor's difference. ValueError for one beyond."""
    if not all(0 <= weight <= 1 for weight in weights):
        raise ValueError(f"weights from 0 to 1, not {list(weights)}")
    norms_n = torch.tensor([each.norm for each in differences], dtype=torch.float64)
    factors_n = (privatizer.factors(norms_n) * torch.tensor(weights, dtype=torch.float64)).tolist()
    sum_d = _weighted_sum(differences, factors_n, numel)
    privatizer.add_noise_(sum_d, source)
    return sum_d.div_(len(differences))


def _weighted_sum(differences: Sequence[VisitorDifference], factors_n: Sequence[float], numel: int) -> torch.Tensor:
    """Return the sum (numel,), added up in fp64: a liar's factor may be too small for fp32."""
    sum_d = torch.empty(numel, dtype=torch.float32)
    readers = [DIFFERENCES.reader(each.payload, numel) for each in differences]
    for chunk in chunks(numel, DIFFERENCES.block):
        x_rw = np.empty((chunk.rows, chunk.width), dtype=np.float32)
        part_rw = np.zeros((chunk.rows, chunk.width))
        for read, factor in zip(readers, factors_n, strict=True):
            read(chunk, x_rw)
            part_rw += np.multiply(x_rw, factor, dtype=np.float64)
        sum_d[chunk.part(DIFFERENCES.block)] = torch.from_numpy(part_rw.reshape(-1).astype(np.float32))
    return sum_d
