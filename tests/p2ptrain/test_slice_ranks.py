"""What the rank that leads finds of a slice that fails: here its own, for which no other rank is asked."""

from datetime import timedelta
from typing import Any

import pytest

from p2ptrain.sync.model_slice import ModelSlice
from p2ptrain.sync.sliced_vectors import LostSliceError
from p2ptrain.training.slice_ranks import SliceRanks


def test_after_a_slice_has_failed_no_vector_is_read() -> None:
    """The others may be a round further: a checkpoint of both would be of no model."""
    nobody: Any = None
    ranks = SliceRanks(nobody, [slice(0, 4)], ModelSlice(slice(0, 4)), timedelta(seconds=1))
    ranks.one(0, "reserve", "theta", 4)
    assert len(ranks.one(0, "read", "theta", 0, 16)) == 16
    failed = "rank 0 of this model has failed with its slice: KeyError"
    with pytest.raises(LostSliceError, match=f"^{failed}"):
        ranks.each("write", "not held", 0, b"")
    with pytest.raises(LostSliceError, match=f"no longer whole: {failed}"):
        ranks.one(0, "read", "theta", 0, 16)
