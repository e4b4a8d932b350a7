"""Random bytes that a test can draw again, in place of the operating system's."""

from collections.abc import Callable

import numpy as np


def seeded_bytes(seed: int) -> Callable[[int], bytes]:
    """Return what `SecretRandom` draws from."""
    return np.random.default_rng(seed).bytes
