"""Which shard a hash belongs to: an example's, or a member's."""

from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

Keys: TypeAlias = npt.NDArray[np.uint64]
"""Hashes, (m,)."""

_MULTIPLIER: Final = 2862933555777941757
"""Of the paper's generator."""


def shards_of(keys: Keys, count: int) -> npt.NDArray[np.int64]:
    """Return the shard of each key, of `count`, int64 (m,): as many keys for each. With one shard more only what goes
    to that one moves, one key in count + 1. Jump consistent hash (Lamping and Veach, 1406.2294)."""
    keys, shards, following = keys.copy(), np.zeros(len(keys), np.int64), np.zeros(len(keys), np.int64)
    while (jumps := following < count).any():
        shards[jumps] = following[jumps]
        keys *= np.uint64(_MULTIPLIER)  # of arrays, this wraps around without a word
        keys += np.uint64(1)
        drawn = ((keys >> np.uint64(33)) + np.uint64(1)).astype(np.float64)
        following = np.where(jumps, ((shards + 1) * (2**31 / drawn)).astype(np.int64), following)
    return shards
