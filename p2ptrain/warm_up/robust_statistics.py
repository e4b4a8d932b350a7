"""What several members' statistics say together, though `f` of them may lie.

In every coordinate of every class the f lowest and the f highest values go, and the rest are averaged (Yin et al.,
1803.01498). A count decides one thing alone: whether its member states something of a class. So nobody gains by a large
one. A class of which fewer than 2 f + 1 members state something is left out: in it liars alone could decide.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from p2ptrain.warm_up.class_statistics import ClassStatistics


@dataclass(frozen=True, kw_only=True)
class SharedStatistics:
    """Statistics of the classes that are known."""

    classes: tuple[int, ...]
    """Their labels, in ascending order."""
    means_cd: torch.Tensor
    """fp32 (c, d), in [-1, 1]."""
    variances_cd: torch.Tensor
    """fp32 (c, d), in [0, 1]."""


def robust_statistics(members: Sequence[ClassStatistics], *, f: int) -> SharedStatistics | None:
    """Return what they say together; None where no class is known by 2 f + 1 of them. All are of one shape."""
    classes: list[int] = []
    means: list[torch.Tensor] = []
    variances: list[torch.Tensor] = []
    for label in range(len(members[0].counts_k) if members else 0):
        stating = [it for it in members if it.counts_k[label] > 0]
        if len(stating) < 2 * f + 1:
            continue
        classes.append(label)
        means.append(_trimmed_mean(torch.stack([it.means_kd[label] for it in stating]), f))
        variances.append(_trimmed_mean(torch.stack([it.variances_kd[label] for it in stating]), f))
    if not classes:
        return None
    return SharedStatistics(classes=tuple(classes), means_cd=torch.stack(means), variances_cd=torch.stack(variances))


def _trimmed_mean(values_nd: torch.Tensor, f: int) -> torch.Tensor:
    return values_nd.sort(dim=0).values[f : len(values_nd) - f].mean(dim=0)
