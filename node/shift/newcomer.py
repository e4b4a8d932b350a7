"""Whether a newcomer's data differ from what everybody has alike: Welch's tests of pieces of both."""

import warnings
from typing import Final

import torch

from p2ptrain.training.data_looks import DataLook

P_VALUE: Final = 1e-4
"""Of all tests together (Bonferroni), below which data count as different: once in ten thousand joins by chance."""

LEAST_DIFFERENCE: Final = 1e-6
"""Of a column's size: pieces of which all values are as near as that differ by rounding. Chosen."""


def differs(own: DataLook, held_out: DataLook) -> list[str]:
    """Return by what the own data differ from the held-out ones: `loss`, `moments`, or nothing. The losses are those of
    one model. Nothing with fewer than two pieces of either."""
    if min(len(own.losses_n), len(held_out.losses_n)) < 2:
        return []
    pairs = {"loss": (own.losses_n.unsqueeze(1), held_out.losses_n.unsqueeze(1))}
    if own.moments_nk.shape[1] == held_out.moments_nk.shape[1] > 0:
        pairs["moments"] = (own.moments_nk, held_out.moments_nk)
    tests = sum(one.shape[1] for one, _ in pairs.values())
    return [name for name, (one, other) in pairs.items() if _least_p(one, other) * tests < P_VALUE]


def _least_p(one_nk: torch.Tensor, other_nk: torch.Tensor) -> float:
    """Return the least p-value of the columns; 1 for columns that are all alike."""
    from scipy import stats  # a second of every node's start otherwise

    both_mk = torch.cat([one_nk, other_nk])
    apart_k = both_mk.amax(0) - both_mk.amin(0) > LEAST_DIFFERENCE * both_mk.abs().amax(0)  # false for nan, too
    one_nk, other_nk = one_nk[:, apart_k], other_nk[:, apart_k]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # one side may be constant where the other is not
        found = stats.ttest_ind(one_nk.numpy(), other_nk.numpy(), axis=0, equal_var=False).pvalue
    return min((float(p) for p in found if p == p), default=1.0)
