"""What a sum of discrete Gaussians hides: nearly what one of the same variance does (2102.06387).

A sum of n discrete Gaussians of the parameter s is none itself. Whole vectors that differ by at most D in L2 are hidden
by it with 1/2 e^2 concentrated differential privacy, in d coordinates, where

    e <= D / (sqrt(n) s) + tau sqrt(d),    tau = 10 sum over k = 1 .. n - 1 of exp(-2 pi^2 s^2 k / (k + 1))

The Renyi divergence at the order alpha is then at most alpha e^2 / 2, as of Gaussian noise of 1 / e times D, so that
the same accountant counts it. For s of 4 and more tau is below 10^-60.
"""

import math


def tau(deviation: float, members: int) -> float:
    """Return by how much a sum of so many discrete Gaussians, each with the parameter `deviation`, is off one."""
    exponent = 2 * math.pi**2 * deviation**2
    return 10 * math.fsum(math.exp(-exponent * k / (k + 1)) for k in range(1, members))


def counted_noise(noise: float, *, deviation: float, members: int, values: int) -> float:
    """Return as how much Gaussian noise, over the clipping norm, that of `members` summed counts. `noise`: the root of
    their variances' sum, over the clipping norm; `values`: coordinates."""
    return 1 / (1 / noise + tau(deviation, members) * math.sqrt(values))
