"""Which examples are whose, by their keys alone: not by their place in a file, nor by who is in the swarm.

One in 16 is held out for all, of the others one in 32 for its shard, and the rest are trained on by its shard
(`shards_of`). Two copies of an example share a key, so that none is both trained on and held out.
"""

from enum import IntEnum
from functools import lru_cache
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from p2ptrain.tasks.base import Shard, TaskError
from p2ptrain.tasks.sharding import Keys, shards_of

Numbers: TypeAlias = npt.NDArray[np.int64]

HELD_OUT_ONE_IN: Final = 16
"""As byte-lm holds out: 6% of the examples."""

OWN_HELD_OUT_ONE_IN: Final = 32
"""Of what a shard has, held out for itself: 3%. It says how far the swarm's model suits this shard's data."""

KEPT_ORDERS: Final = 4
"""Permutations that are remembered: an epoch and the next one of training and of judging, 8 bytes a row each."""

_MIX: Final = 0x9E3779B97F4A7C15
"""2^64 over the golden ratio, odd (Knuth): it makes a second hash of a key."""


class Part(IntEnum):
    """What an example is for."""

    TRAIN = 0
    HELD_OUT = 1
    """By all."""
    OWN_HELD_OUT = 2
    """By its shard."""


class Dealing:
    """The examples with the keys (m,) uint64, dealt. TaskError where there are too few to hold one out."""

    def __init__(self, keys: Keys) -> None:
        self._keys, self._parts = keys, part_of(keys)
        if not (self._parts == Part.TRAIN).any():
            raise TaskError(f"the data have {len(keys)} examples: too few to hold one out; give more")

    def held_out(self) -> Numbers:
        """Return the examples that are held out for all, in the order of their keys."""
        return self._chosen(self._parts == Part.HELD_OUT)

    def of_shard(self, shard: Shard, part: Part = Part.TRAIN) -> Numbers:
        """Return the shard's examples, to train on or held out for it, in the order of their keys. TaskError where it
        has none to train on."""
        index = shard.index % shard.count
        mine = shards_of(self._keys, shard.count) == index
        found = self._chosen(mine & (self._parts == part))
        if part is Part.TRAIN and not len(found):
            raise TaskError(
                f"the data have {len(self._keys)} examples: none for shard {index} of {shard.count}; give more data, "
                "or a lower node.shard_count"
            )
        return found

    def _chosen(self, which: npt.NDArray[np.bool_]) -> Numbers:
        (examples,) = np.nonzero(which)
        # By content, not by place: the same examples in files of another order are dealt alike.
        return examples[np.argsort(self._keys[examples], kind="stable")].astype(np.int64)


def part_of(keys: Keys) -> npt.NDArray[np.int8]:
    """Return the part of each key, a `Part` as int8 (m,). Of few examples the one with the least remainder is held out,
    so that there is one."""
    mixed = _mixed(keys)
    remainder = mixed % np.uint64(HELD_OUT_ONE_IN)
    least = remainder.min(initial=HELD_OUT_ONE_IN)
    parts = np.where(remainder == least, Part.HELD_OUT, Part.TRAIN).astype(np.int8)
    own = (mixed // np.uint64(HELD_OUT_ONE_IN)) % np.uint64(OWN_HELD_OUT_ONE_IN)
    parts[(parts == Part.TRAIN) & (own == 0)] = Part.OWN_HELD_OUT
    return parts


def drawn(step: int, *, seed: int, index: int, size: int, count: int) -> Numbers:
    """Return the numbers, of `count`, that make up batch `step` of shard `index`: each once, in an order drawn from the
    seed, and then all again in another."""
    places = range(step * size, (step + 1) * size)
    chosen = [_order(seed, index, place // count, count)[place % count] for place in places]
    return np.array(chosen, np.int64)


@lru_cache(maxsize=KEPT_ORDERS)
def _order(seed: int, index: int, epoch: int, count: int) -> Numbers:
    return np.random.default_rng([seed, index, epoch]).permutation(count)


def _mixed(keys: Keys) -> Keys:
    """Another hash than the one that deals shards: else some shards would hold out all, and others nothing."""
    mixed = keys * np.uint64(_MIX)  # of arrays, this wraps around without a word
    found: Keys = mixed ^ (mixed >> np.uint64(32))
    return found
