"""Synthetic examples of shared statistics: a class is drawn evenly, and each coordinate from its own normal."""

import torch

from p2ptrain.warm_up.class_statistics import LEAST_VARIANCE
from p2ptrain.warm_up.robust_statistics import SharedStatistics


class SyntheticExamples:
    """`shape` is that of one input, whose range is from `low` to `high`. The same seed draws the same examples."""

    def __init__(self, statistics: SharedStatistics, *, shape: torch.Size, low: float, high: float, seed: int) -> None:
        self._statistics, self._shape = statistics, shape
        self._deviations_cd = statistics.variances_cd.clamp_min(LEAST_VARIANCE).sqrt()
        self._labels = torch.tensor(statistics.classes)
        self._middle, self._half = (high + low) / 2, (high - low) / 2
        self._random = torch.Generator().manual_seed(seed)

    def draw(self, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the next inputs, fp32 (size, *shape), cut to the range, and their labels, int64 (size,)."""
        chosen_n = torch.randint(len(self._labels), (size,), generator=self._random)
        normal_nd = torch.randn(size, self._deviations_cd.shape[1], generator=self._random)
        scaled_nd = self._statistics.means_cd[chosen_n] + self._deviations_cd[chosen_n] * normal_nd
        inputs_nd = scaled_nd.clamp_(-1.0, 1.0) * self._half + self._middle
        return inputs_nd.view(size, *self._shape), self._labels[chosen_n]
