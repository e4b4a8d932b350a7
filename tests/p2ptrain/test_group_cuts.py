"""Members are cut into groups alike by all who know the same ones, and by bisection nearly so by all others."""

from statistics import mean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sizes import examples

from p2ptrain.graphs.passes import drawn
from p2ptrain.sync.group_cuts import CUTS

SEED = b"seed"


def names(count: int) -> dict[str, str]:
    return {name: name for name in (f"n{place}" for place in range(count))}


@given(count=st.integers(0, 90), least=st.integers(4, 32), round=st.integers(0, 10**6), cut=st.sampled_from([*CUTS]))
@settings(max_examples=examples(200))
def test_every_member_is_in_one_group_of_a_size_that_is_promised(count: int, least: int, round: int, cut: str) -> None:
    keys = names(count)
    groups = CUTS[cut].groups(keys, SEED, round, least)
    assert sorted(name for group in groups for name in group) == (sorted(keys) if count >= least else [])
    assert all(least <= len(group) < 2 * least for group in groups)
    backwards = dict(reversed(keys.items()))
    assert CUTS[cut].groups(backwards, SEED, round, least) == groups
    assert len(groups) >= max((each for each in range(1, 30) if CUTS[cut].fewest(each, least) <= count), default=0)


@pytest.mark.parametrize("cut", CUTS)
def test_groups_are_others_in_every_round_and_names_have_no_say_in_them(cut: str) -> None:
    keys = names(19)
    first = {
        frozenset(next(group for group in CUTS[cut].groups(keys, SEED, round, 4) if "n0" in group))
        for round in range(6)
    }
    assert len(first) == 6
    renamed = {f"other{place}": key for place, key in enumerate(keys.values())}
    by = dict(zip(renamed, keys, strict=True))
    found = CUTS[cut].groups(renamed, SEED, 3, 4)
    assert [{by[name] for name in group} for group in found] == [
        set(each) for each in CUTS[cut].groups(keys, SEED, 3, 4)
    ]


def test_an_even_cut_is_that_of_releases_before_there_was_another() -> None:
    keys = names(11)
    order = sorted(keys, key=lambda name: drawn(SEED, 5, name))
    assert CUTS["even"].groups(keys, SEED, 5, 4) == [order[:5], order[5:]]


def test_who_is_seen_by_some_changes_its_own_group_and_seldom_others() -> None:
    """Of 28 members, whom an even cut sends to other groups nearly all."""

    def moved(cut: str, round: int) -> int:
        without, with_it = (
            {frozenset(group) for group in CUTS[cut].groups(keys, SEED, round, 4)}
            for keys in (names(28), names(28) | {"liar": "liar"})
        )
        return len(without - with_it)

    rounds = range(200)
    assert mean(moved("even", round) for round in rounds) > 3
    of_bisection = [moved("bisection", round) for round in rounds]
    assert mean(of_bisection) < 1.3
    assert sum(each <= 1 for each in of_bisection) > 0.75 * len(of_bisection)


@pytest.mark.parametrize("cut", CUTS)
def test_members_that_are_drawn_by_one_thing_do_not_stop_the_others(cut: str) -> None:
    keys = {f"n{place}": "the same" if place < 9 else str(place) for place in range(12)}
    groups = CUTS[cut].groups(keys, SEED, 0, 4)
    assert sorted(name for group in groups for name in group) == sorted(keys)
    assert all(4 <= len(group) < 8 for group in groups)


def test_two_members_on_one_side_of_every_turn_are_parted_in_the_end() -> None:
    """A part of 64 of which 32 must go each way is drawn until it does: nothing larger than 63 stays."""
    sizes = [len(group) for round in range(5) for group in CUTS["bisection"].groups(names(64), SEED, round, 32)]
    assert sizes == [32] * 10
