"""What every selection policy must hold: it decides by measurements alone, and has a finite worth for any of them."""

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.selection import SELECTION, SelectionPolicy
from node.selection.base import MeasuredNeighbour
from node.selection.chooser import MOST_USEFUL
from p2ptrain.registry import BadOptionError

every_policy = pytest.mark.parametrize("name", SELECTION.names())

candidates = st.builds(
    MeasuredNeighbour,
    peer=st.sampled_from(["a", "b"]),
    usefulness=st.none() | st.floats(0, MOST_USEFUL),
    lag=st.integers(0, 1 << 40),
    seconds=st.none() | st.floats(0, 1e12),
    unheard=st.integers(0, 1 << 40),
)


def policy(name: str) -> SelectionPolicy:
    return SELECTION.get(name)


@every_policy
def test_it_says_whether_it_reads_usefulness_and_reads_none_otherwise(name: str) -> None:
    its = policy(name)
    it = MeasuredNeighbour(peer="a", usefulness=0.5, lag=1, seconds=1.0, unheard=3)
    worth, other = (its.worth(each, random.Random(1)) for each in (it, replace(it, usefulness=2.0)))
    assert (worth != other) == its.measures


@every_policy
@given(it=candidates, seed=st.integers(0, 1 << 30))
def test_worth_is_finite_never_negative_and_the_same_by_the_same_lots(
    name: str, it: MeasuredNeighbour, seed: int
) -> None:
    its = policy(name)
    worth = its.worth(it, random.Random(seed))
    assert worth == policy(name).worth(it, random.Random(seed))
    assert math.isfinite(worth)
    assert worth >= 0


@every_policy
@given(it=candidates, seed=st.integers(0, 1 << 30))
def test_a_name_is_worth_nothing(name: str, it: MeasuredNeighbour, seed: int) -> None:
    """Names cost nothing: who could choose one by which it comes first would."""
    its = policy(name)
    assert its.worth(replace(it, peer="a"), random.Random(seed)) == its.worth(
        replace(it, peer="b"), random.Random(seed)
    )


@every_policy
@given(it=candidates, seed=st.integers(0, 1 << 30), times=st.floats(2, 100))
def test_nobody_is_worth_more_for_being_slower_or_further_behind(
    name: str, it: MeasuredNeighbour, seed: int, times: float
) -> None:
    its, slower = policy(name), 2.0 if it.seconds is None else it.seconds * times
    worth = its.worth(it, random.Random(seed))
    assert its.worth(replace(it, seconds=slower, lag=it.lag + 1), random.Random(seed)) <= worth


def test_an_exponent_that_is_none_is_refused() -> None:
    for link in (-1.0, 5.0, math.nan):
        with pytest.raises((BadOptionError, ValueError), match="link must lie in"):
            SELECTION.get("useful", link=link)
