"""A third party's compressor and aggregator, each with an option of its own.

Used by tests/sim/test_member_options.py.
"""

from typing import Annotated

import torch

from p2ptrain.aggregate.base import Rows
from p2ptrain.aggregate.trimmed_mean import TrimmedMean
from p2ptrain.compress.dense import Dense


class Rounded(Dense):
    """Sends every number as the nearest multiple of `step`, 4 bytes each."""

    name = "rounded"

    def __init__(self, *, step: Annotated[float, "Distance between two numbers that can be sent."] = 0.001) -> None:
        if not step > 0:
            raise ValueError(f"rounded: step must be above 0, not {step}")
        self.step = step

    def encode(self, x_d: torch.Tensor) -> bytes:
        """The payload: fp32 little-endian."""
        return super().encode((x_d / self.step).round() * self.step)


class Damped(TrimmedMean):
    """The trimmed mean, times `share`."""

    name = "damped"

    def __init__(
        self, *, f: int = 1, share: Annotated[float, "Of the trimmed mean, in (0, 1]."] = 1.0, step: int = 1
    ) -> None:
        super().__init__(f=f)
        if not 0 < share <= 1:
            raise ValueError(f"damped: share must be in (0, 1], not {share}")
        self.share = share
        self.step = step

    def _combine(self, rows: Rows) -> torch.Tensor:
        return super()._combine(rows) * self.share
