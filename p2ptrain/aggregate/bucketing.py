"""Bucketing: average small groups of vectors, drawn at random, and aggregate the averages."""

from typing import Annotated

import torch

from p2ptrain.aggregate.geometry import Geometry
from p2ptrain.aggregate.pre_aggregator import MixingStage


class Bucketing(MixingStage):
    """The means of buckets of `size` rows, which are drawn anew in every call (Karimireddy, He and Jaggi, 2006.09365).
    The last bucket takes what is left.

    The draws are those of `generator`, or of one of its own that begins at `seed`. A liar that knows them can choose
    whom it shares a bucket with: give a generator that others cannot guess, or a seed that differs from round to round.

    Guarantee: f liars spoil f buckets, which the rule after it withstands; honest buckets differ less than honest rows,
    by `size` in variance. It costs breakdown: a share of 1/(2 size) where the rule has 1/2.
    Cost: O(n d), or nothing of d for a geometric rule.
    """

    name = "bucketing"
    looks = False

    def __init__(
        self,
        *,
        f: int = 1,
        size: Annotated[int, "Vectors whose mean is one bucket."] = 2,
        seed: Annotated[int, "Of the random choice."] = 0,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(f=f)
        if size < 1:
            raise ValueError(f"{self.name}: size must be 1 or more, not {size}")
        self.size = size
        self._generator = torch.Generator().manual_seed(seed) if generator is None else generator

    def minimum(self, after: int) -> int:
        """Return the fewest rows: size (after - 1) + 1."""
        return self.size * (after - 1) + 1

    def breakdown(self, after: float) -> float:
        """Return the share of liars withstood before a rule that withstands the share `after`."""
        return after / self.size

    def mix(self, n: int, geometry: Geometry | None) -> torch.Tensor:
        """Return weights float64 (m, points), rows summing to 1, for n rows."""
        buckets = torch.split(torch.randperm(n, generator=self._generator), self.size)
        weight_mn = torch.zeros(len(buckets), n, dtype=torch.float64)
        for weight_n, bucket in zip(weight_mn, buckets, strict=True):
            weight_n[bucket] = 1 / len(bucket)
        return weight_mn
