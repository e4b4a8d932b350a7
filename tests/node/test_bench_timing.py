"""Ratios of timings."""

import pytest

from node.bench.timing import Spent, Taken


def test_a_ratio_is_of_the_reference_of_its_own_turn():
    turns = [
        (Spent(wall=2.0, cpu=6.0), Spent(wall=1.0, cpu=2.0)),
        (Spent(wall=20.0, cpu=60.0), Spent(wall=10.0, cpu=20.0)),  # a busy moment slows both
        (Spent(wall=2.2, cpu=6.6), Spent(wall=1.0, cpu=2.0)),
    ]
    found = Taken.of(turns)
    assert (found.ratio, found.cpu_ratio) == (pytest.approx(2.0), pytest.approx(3.0))
    assert (found.seconds, found.cpu_seconds) == (2.2, 6.6)
