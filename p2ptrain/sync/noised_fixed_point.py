"""Fixed point with a bound on the whole vector and a share of the noise in it: for sums with differential privacy.

    encode   q = round(x min(1, C / ||x||) / step) at random, at most 2^(b - 2) in size, and ||q|| <= C / step
    noised   q + 2^(b - 1) + k   modulo 2^width,   k a discrete Gaussian (p2ptrain/privacy/noise_shares.py)
    decode   mean over k members = (sum - k 2^(b - 1)) step / k, read as a signed number

Half of a value's range is for values, and half for noise: 8 standard deviations of a sum's noise fit. Nobody cuts a
value once it is noised, as the others' noise protects it only where all is added up. The norm is checked in whole
numbers after rounding, which makes vectors longer: where it is exceeded the vector is shortened and rounded again, and
at last towards 0.
"""

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch

from p2ptrain.privacy.discrete_gaussian import MOST_DEVIATION, DiscreteGaussian, RandomBytes
from p2ptrain.privacy.noise_shares import LEAST_SHARE, NoiseShares
from p2ptrain.sync.fixed_point import AT_ONCE, EncodedWords, FixedPoint, UniformSource, Words_d

MOST_BITS: Final = 24
"""Of a noised value: then the squares of `_SQUARED_AT_ONCE` values add up to less than 2^63."""

_SQUARED_AT_ONCE: Final = 1 << 18

FITTING: Final = 8.0
"""Standard deviations of a sum's noise that fit beside the values: one in 10^15 is beyond."""

_ROUNDINGS: Final = 4
"""Times that a vector is rounded at random before it is rounded towards 0."""


@dataclass(frozen=True)
class NoisedFixedPoint(FixedPoint):
    """The codec of one group whose members share out noise. ValueError on noise that does not fit."""

    shares: NoiseShares

    def __post_init__(self) -> None:
        super().__post_init__()
        check_noise(self)

    @property
    def center(self) -> int:
        """Return the encoded 0."""
        return 1 << (self.bits - 1)

    @property
    def largest(self) -> int:
        """Return the largest size of an encoded value without noise."""
        return 1 << (self.bits - 2)

    @property
    def share_steps(self) -> float:
        """Return the standard deviation of a member's noise, in steps."""
        return self.shares.deviation(self.members) / self.step

    @property
    def squares(self) -> int:
        """Return what the squares of a member's whole numbers add up to at most."""
        return math.floor((self.shares.clip / self.step) ** 2)

    def encode(self, x_d: torch.Tensor, source: UniformSource) -> EncodedWords:
        """Clip and round a vector fp32 (d,), without noise. ValueError where it is not finite."""
        norm = float(torch.linalg.vector_norm(x_d, dtype=torch.float64))
        if not math.isfinite(norm):
            raise ValueError("values are not finite: the training diverged (a lower learning rate helps)")
        factor = min(1.0, self.shares.clip / norm) if norm else 1.0
        sources: list[UniformSource | None] = [source] * _ROUNDINGS
        whole_d, clipped = self._rounded(x_d.numpy(), factor, source)
        while (squares := _squares(whole_d)) > self.squares:
            factor *= min(0.999, math.sqrt(self.squares / squares))
            whole_d, clipped = self._rounded(x_d.numpy(), factor, sources.pop() if sources else None)
        return EncodedWords((whole_d + self.center).astype(np.uint32), clipped)

    def noised(self, word_d: Words_d, random_bytes: RandomBytes) -> Words_d:
        """Return encoded values (d,) with a share of the noise in each, modulo 2^width."""
        noise, noised_d = DiscreteGaussian(self.share_steps), np.empty_like(word_d)
        for start in range(0, word_d.size, AT_ONCE):
            at = slice(start, start + AT_ONCE)
            whole_c = word_d[at].astype(np.int64)
            noised_d[at] = (whole_c + noise.draw(whole_c.size, random_bytes)) & self._mask
        return noised_d

    def mean(self, sum_d: Words_d, counted: int) -> torch.Tensor:
        """Return the mean fp32 (d,) of `counted` members' values from their sum. What is beyond the range is cut to
        it: nobody sees what a liar adds."""
        whole_d = (sum_d.astype(np.int64) - counted * self.center) & self._mask
        whole_d -= (whole_d >> (self.width - 1)) << self.width
        most = counted * (self.center - 1)
        return torch.from_numpy((np.clip(whole_d, -most, most) * (self.step / counted)).astype(np.float32))

    def _rounded(
        self, x_d: np.ndarray[tuple[int], np.dtype[np.float32]], factor: float, source: UniformSource | None
    ) -> tuple[np.ndarray[tuple[int], np.dtype[np.int32]], int]:
        """The vector in whole steps (d,), at random or, without a source, towards 0; and how many values were cut."""
        whole_d, clipped = np.empty(x_d.size, np.int32), 0
        for start in range(0, x_d.size, AT_ONCE):
            scaled_c = x_d[start : start + AT_ONCE].astype(np.float64) * (factor / self.step)
            clipped += int(np.count_nonzero(np.abs(scaled_c) > self.largest))
            scaled_c = np.clip(scaled_c, -self.largest, self.largest)
            rounded_c = np.trunc(scaled_c) if source is None else np.floor(scaled_c + source.uniforms(scaled_c.size))
            whole_d[start : start + AT_ONCE] = np.clip(rounded_c, -self.largest, self.largest)
        return whole_d, clipped


def check_noise(codec: NoisedFixedPoint) -> None:
    """ValueError, in one line with the arithmetic, where a share of the noise is too fine or too coarse in whole
    numbers, or a sum's does not fit beside the values."""
    if codec.bits > MOST_BITS:
        raise ValueError(f"bits must be {MOST_BITS} or less with sum_noise, not {codec.bits}")
    share, members = codec.share_steps, codec.members
    what = f"in a group of {members} a member's noise is {codec.shares.deviation(members):.4g}, {share:.4g} steps"
    if share < LEAST_SHARE:
        raise ValueError(f"{what}, fewer than {LEAST_SHARE:g}: give more bits, or a smaller clipping_range")
    if FITTING * share / math.sqrt(members) > codec.largest:
        least = FITTING * codec.shares.deviation(members) / math.sqrt(members) / (codec.largest / codec.levels * 2)
        raise ValueError(
            f"{what}; {FITTING:g} times the sum's take {FITTING:g} {share:.4g} / sqrt({members}) steps of each value's "
            f"range, and {codec.largest} are for noise: set clipping_range to {least:.3g} or more"
        )
    if share > MOST_DEVIATION:
        raise ValueError(f"{what}, more than {MOST_DEVIATION:g}: give fewer bits")


def _squares(whole_d: np.ndarray[tuple[int], np.dtype[np.int32]]) -> int:
    """The sum of squares, exactly."""
    found = 0
    for start in range(0, whole_d.size, _SQUARED_AT_ONCE):
        whole_c = whole_d[start : start + _SQUARED_AT_ONCE].astype(np.int64)
        found += int(np.dot(whole_c, whole_c))
    return found
