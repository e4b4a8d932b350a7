"""The unit in which traffic is compared: bits for each parameter and inner step, so that runs of any length and model
are alike."""

from typing import Final

BITS: Final = 8
FP32_BITS: Final = 32


def bits_each(size: int, *, parameters: int, steps: int) -> float | None:
    """Return `size` bytes as bits for each parameter and inner step; None before the first step."""
    return BITS * size / (parameters * steps) if parameters and steps else None


def ring_all_reduce_bits(nodes: int) -> float:
    """Return the bits for each parameter that one node sends in one fp32 ring all-reduce, the cheapest exact mean there
    is: 2 (n-1)/n of the vector. Synchronous data parallel sends as many at every inner step."""
    return 2 * (nodes - 1) / nodes * FP32_BITS
