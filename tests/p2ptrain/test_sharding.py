"""Keys into shards, against the paper's own loop."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from sizes import examples

from p2ptrain.tasks.sharding import shards_of

WORD = 2**64


def by_the_paper(key: int, count: int) -> int:
    """1406.2294, figure 1."""
    shard, following = -1, 0
    while following < count:
        shard = following
        key = (key * 2862933555777941757 + 1) % WORD
        following = int((shard + 1) * ((1 << 31) / ((key >> 33) + 1)))
    return shard


@settings(max_examples=examples(100), deadline=None, derandomize=True)
@given(st.lists(st.integers(0, WORD - 1), max_size=50), st.integers(1, 5000))
def test_is_the_papers(keys: list[int], count: int) -> None:
    given_keys = np.array(keys, np.uint64)
    assert shards_of(given_keys, count).tolist() == [by_the_paper(key, count) for key in keys]
    assert given_keys.tolist() == keys, "left as they were"


@settings(max_examples=examples(50), deadline=None, derandomize=True)
@given(st.integers(0, WORD - 1), st.integers(1, 300))
def test_with_a_shard_more_a_key_stays_or_goes_there(seed: int, count: int) -> None:
    keys = np.random.default_rng(seed).integers(0, WORD, 2000, dtype=np.uint64)
    before, after = shards_of(keys, count), shards_of(keys, count + 1)
    assert (after[after != before] == count).all()
    assert abs((after != before).mean() - 1 / (count + 1)) < 0.06
