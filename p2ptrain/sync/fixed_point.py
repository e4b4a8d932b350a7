"""Values as whole numbers that may be summed before anybody reads them: the linear codec of secure aggregation.

    step     2 R / (2^b - 1)
    encode   q = floor((clip(x, -R, R) + R) / step + u),   u uniform in [0, 1): E[q step - R] = clip(x)
    decode   mean of x over k members = (sum of q) step / k - R

The offset R makes every q one of 0 .. 2^b - 1, so that the sum of n of them is below n 2^b <= 2^width, width = b +
ceil(log2 n), and no sum modulo 2^width wraps. Decoding a sum is the sum of decodings, to the rounding of fp64.

An anchor, which is the same at nearly all members, needs no range: it travels modulo 2^width, and what is read of a sum
is only how far the members' mean is from the reader's own, in whole steps. That is exact below 2^(width - 1) steps in
all.
"""

import math
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

LARGEST_WIDTH: Final = 32
"""Bits of a masked value, at most (gossip.secure_aggregation)."""

LEAST_BITS: Final = 2
"""With one bit a value would be -R or R, and 0 could not be said but on average."""

AT_ONCE: Final = 1 << 20
"""Values encoded at a time: some 30 MB of temporaries, whatever the model's size."""

Words_d: TypeAlias = npt.NDArray[np.uint32]
"""Fixed-point values, or sums of them modulo 2^width (d,)."""


class UniformSource(Protocol):
    """Where the rounding's random numbers come from."""

    def uniforms(self, count: int) -> npt.NDArray[np.float64]:
        """Return `count` independent numbers in [0, 1)."""


class EncodedWords(NamedTuple):
    """A vector as whole numbers."""

    words_d: Words_d
    clipped: int
    """How many values were beyond the range, and were cut to it."""


def width_of(bits: int, members: int) -> int:
    """Return the bits that a sum of `members` values of `bits` bits needs at most."""
    return bits + (members - 1).bit_length()


def check_fixed_point(clipping_range: float, bits: int, members: int) -> None:
    """ValueError, in one line with the arithmetic, on what cannot be summed by the largest group."""
    if not (math.isfinite(clipping_range) and clipping_range > 0):  # NaN passes any comparison with 0 as false
        raise ValueError(f"clipping_range must be a finite number above 0, not {clipping_range}")
    if bits < LEAST_BITS:
        raise ValueError(f"bits must be {LEAST_BITS} or more, not {bits}")
    width = width_of(bits, members)
    if width > LARGEST_WIDTH:
        raise ValueError(
            f"a sum of {members} values of {bits} bits needs {bits} + ceil(log2 {members}) = {width} bits, "
            f"and a masked value has {LARGEST_WIDTH} at most: set bits to {LARGEST_WIDTH - (width - bits)} or less"
        )


@dataclass(frozen=True)
class FixedPoint:
    """The codec of one group. ValueError on a range, bits or members that cannot be."""

    clipping_range: float
    """R: the largest size of a value that is not cut."""
    bits: int
    """b, of one member's value."""
    members: int
    """n: how many values are summed at most."""

    def __post_init__(self) -> None:
        if self.members < 1:
            raise ValueError(f"a sum has 1 member or more, not {self.members}")
        check_fixed_point(self.clipping_range, self.bits, self.members)

    @property
    def width(self) -> int:
        """Return the bits of a sum, and of each masked value."""
        return width_of(self.bits, self.members)

    @property
    def levels(self) -> int:
        """Return the largest encoded value."""
        return (1 << self.bits) - 1

    @property
    def step(self) -> float:
        """Return by how much a value grows with its whole number."""
        return 2 * self.clipping_range / self.levels

    def encode(self, x_d: torch.Tensor, source: UniformSource) -> EncodedWords:
        """Round a vector fp32 (d,) to whole numbers at random, without bias. ValueError where it is not finite."""
        value_d = x_d.numpy()
        word_d, clipped = np.empty(value_d.size, np.uint32), 0
        for start in range(0, value_d.size, AT_ONCE):
            value_c = value_d[start : start + AT_ONCE].astype(np.float64)
            if not np.isfinite(value_c).all():
                raise ValueError("values are not finite: the training diverged (a lower learning rate helps)")
            clipped += int(np.count_nonzero(np.abs(value_c) > self.clipping_range))
            scaled_c = (np.clip(value_c, -self.clipping_range, self.clipping_range) + self.clipping_range) / self.step
            rounded_c = np.floor(scaled_c + source.uniforms(value_c.size))
            word_d[start : start + AT_ONCE] = np.minimum(rounded_c, self.levels)
        return EncodedWords(word_d, clipped)

    def mean(self, sum_d: Words_d, counted: int) -> torch.Tensor:
        """Return the mean fp32 (d,) of `counted` members' values from their sum. Nobody sees what a liar adds: a
        sum that honest values cannot have is taken for their largest."""
        possible_d = np.minimum(sum_d, np.uint64(counted * self.levels))
        mean_d = possible_d.astype(np.float64) * (self.step / counted) - self.clipping_range
        return torch.from_numpy(mean_d.astype(np.float32))

    def wrap(self, x_d: torch.Tensor) -> Words_d:
        """Return values of any size, to the nearest step, modulo 2^width. The same bits wherever `x_d` has the same."""
        whole_d = np.fmod(np.rint(x_d.numpy().astype(np.float64) / self.step), float(1 << self.width))
        return (whole_d.astype(np.int64) & self._mask).astype(np.uint32)

    def shift(self, sum_d: Words_d, own_d: Words_d, counted: int) -> torch.Tensor:
        """Return how far the mean of `counted` wrapped vectors is from the own one, fp32 (d,): exactly 0 where all are
        alike."""
        apart_d = (sum_d.astype(np.int64) - counted * own_d.astype(np.int64)) & self._mask
        apart_d -= (apart_d >> (self.width - 1)) << self.width  # the upper half of them stands for what is below 0
        return torch.from_numpy((apart_d.astype(np.float64) * (self.step / counted)).astype(np.float32))

    @property
    def _mask(self) -> int:
        return (1 << self.width) - 1
