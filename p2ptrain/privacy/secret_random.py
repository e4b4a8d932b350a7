"""Random numbers that nobody else can know or draw again: for noise, and for who is in a batch.

They come from the operating system, whose generator is cryptographic, at every call. There is no key that a restart
could take again, no seed of the run in them, and no state in a checkpoint: a step that is taken again after a restart
has other examples and other noise, and is a release of its own.
"""

import math
import os
from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt
import torch

BITS: Final = 53
"""Of a number in [0, 1): all that fp64 holds."""

AT_ONCE: Final = 1 << 20
"""Numbers drawn at a time: some 40 MB of temporaries, whatever the model's size."""


class SecretRandom:
    """Draws from `random_bytes`, which returns so many bytes: by default the operating system's. Thread-safe if that
    is."""

    def __init__(self, random_bytes: Callable[[int], bytes] = os.urandom) -> None:
        self._random_bytes = random_bytes

    def uniforms(self, count: int) -> npt.NDArray[np.float64]:
        """Return `count` independent numbers in [0, 1), multiples of 2^-53."""
        words = np.frombuffer(self._random_bytes(8 * count), dtype="<u8")
        return (words >> np.uint64(64 - BITS)).astype(np.float64) * 2.0**-BITS

    def normals(self, count: int) -> torch.Tensor:
        """Return `count` independent standard normal numbers, fp64 on the CPU, by the method of Box and Muller. None is
        beyond 8.6, where a true one is once in 10^17."""
        normal_n = np.empty(count)
        for start in range(0, count, AT_ONCE):
            normal_n[start : start + AT_ONCE] = self._normals(min(AT_ONCE, count - start))
        return torch.from_numpy(normal_n)

    def drawn(self, count: int, rate: float) -> npt.NDArray[np.int64]:
        """Return which of the numbers from 0 to `count` are drawn, each apart with probability `rate`, in ascending
        order: Poisson sampling, whose size varies and may be 0."""
        found = [
            start + np.flatnonzero(self.uniforms(min(AT_ONCE, count - start)) < rate)
            for start in range(0, count, AT_ONCE)
        ]
        return np.concatenate([np.empty(0, np.int64), *found])

    def _normals(self, count: int) -> npt.NDArray[np.float64]:
        pairs = (count + 1) // 2
        uniforms = self.uniforms(2 * pairs)
        radius = np.sqrt(-2.0 * np.log1p(-uniforms[:pairs]))  # of 1 - u, which is above 0
        angle = 2.0 * math.pi * uniforms[pairs:]
        return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count]
