"""The slowest link that a quorum waits for, against counting who keeps up."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node.training.bandwidth import quorum_speed

speeds = st.lists(st.floats(1, 1e9) | st.none(), max_size=20)


@pytest.mark.parametrize(
    ("known", "expected"),
    [([], None), ([None, None], None), ([5.0], 5.0), ([5.0, None, 9.0], 5.0), ([1.0, 8.0, 9.0], 8.0)],
)
def test_by_hand(known, expected):
    assert quorum_speed(known, 2 / 3) == expected


@settings(deadline=None)
@given(speeds, st.sampled_from([0.1, 0.5, 2 / 3, 0.9, 1.0]))
def test_a_quorum_is_at_least_as_fast_and_no_more_can_be_asked(links, quorum):
    found, known = quorum_speed(links, quorum), [speed for speed in links if speed is not None]
    assert (found is None) == (not known)
    if found is not None:
        assert found in known
        assert sum(speed >= found for speed in known) >= quorum * len(known) - 1e-6
        assert sum(speed > found for speed in known) < quorum * len(known)
