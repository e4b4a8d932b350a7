"""What is derived from a simulation's seed: each use its own, so that a node more changes nothing of the others'."""

import hashlib
import math
import random
from typing import Final

from gossip.core.identity import Identity

KEY_BYTES = 32
ROUNDING: Final = 1e-9
"""Of a count by a share: 0.07 of 100 is 7, and 7.000000000000001 in floating point."""


def derived(seed: int, *purpose: str) -> bytes:
    """Return 32 bytes for one purpose."""
    return hashlib.blake2b("|".join((str(seed), *purpose)).encode(), digest_size=KEY_BYTES).digest()


def rng_of(seed: int, *purpose: str) -> random.Random:
    """Return the random numbers of one purpose."""
    return random.Random(derived(seed, *purpose))


def share_of(count: int, share: float) -> int:
    """Return how many a share of `count` is, rounded up."""
    return math.ceil(share * count - ROUNDING)


def identity_of(seed: int, node: str) -> Identity:
    """Return a node's key."""
    return Identity(derived(seed, node, "identity"))
