"""Who averages with whom: partners choose each other, groups are groups, and d rounds of them are a global mean."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sync_reference import grid_groups, matching

from p2ptrain import graphs
from p2ptrain.sync.peer_selection import EVERYONE, Alternating, GraphSelection, shared_seed

SEED = shared_seed(torch.arange(5.0))

swarms = st.lists(st.text(min_size=1, max_size=6), min_size=1, max_size=11, unique=True)
rounds = st.integers(0, 10_000)


def matched(own: str, seed: bytes = SEED) -> GraphSelection:
    return GraphSelection(own, seed, graphs.get("matching"))


def on_grid(own: str, size: int) -> GraphSelection:
    return GraphSelection(own, SEED, graphs.get("grid", group=size))


def partners(members: list[str], round: int) -> dict[str, list[str]]:
    return {own: matched(own).chosen(sorted(set(members) - {own}), round) for own in members}


@given(members=swarms, round=rounds)
def test_partners_choose_each_other_and_at_most_one_is_left_over(members: list[str], round: int) -> None:
    chosen = partners(members, round)
    assert all(len(them) <= 1 for them in chosen.values())
    assert sum(not them for them in chosen.values()) == len(members) % 2
    for own, them in chosen.items():
        assert all(chosen[partner] == [own] for partner in them)
    assert {own: them[0] for own, them in chosen.items() if them} == matching(members, SEED, round)


def test_everybody_meets_everybody() -> None:
    members = [f"n{i}" for i in range(8)]
    met = {(own, them[0]) for round in range(60) for own, them in partners(members, round).items()}
    assert met == set(itertools.permutations(members, 2))
    alone = {own for round in range(40) for own, them in partners(members[:5], round).items() if not them}
    assert alone == set(members[:5]), "being left over goes round"


def test_the_seed_is_the_models_own() -> None:
    other = shared_seed(torch.arange(6.0))
    assert other != SEED == shared_seed(torch.arange(5.0))
    draws = [[matched("a", seed).chosen(["b", "c", "d"], round) for round in range(20)] for seed in (SEED, other)]
    assert draws[0] != draws[1]


@pytest.mark.slow
def test_a_member_that_only_some_know_disturbs_few() -> None:
    """Of twelve, those who know the thirteenth and those who do not choose alike, but for three of them on average;
    the neighbours in a shuffled list, taken two by two, would all be others behind the place of the thirteenth."""
    members = [f"n{i:02d}" for i in range(13)]
    changed = 0
    for round in range(200):
        with_it, without = partners(members, round), partners(members[:-1], round)
        changed += sum(with_it[own] != without[own] for own in without)
    assert changed / 200 < 4


@given(members=swarms, round=st.integers(0, 50), size=st.integers(2, 6))
def test_groups_are_the_same_seen_from_every_member(members: list[str], round: int, size: int) -> None:
    expected = {name: group for group in grid_groups(members, SEED, round, size) for name in group}
    for own in members:
        chosen = on_grid(own, size).chosen(sorted(set(members) - {own}), round)
        assert {own, *chosen} == expected[own]
        assert len(chosen) < size


@pytest.mark.parametrize(
    ("members", "size", "exact_after"),
    [(4, 2, 2), (8, 2, 3), (9, 3, 2), (16, 4, 2), (8, 4, 2), (12, 4, 2), (27, 3, 3), (18, 3, 3), (4, 4, 1), (3, 8, 1)],
)
def test_a_pass_over_the_axes_is_the_exact_mean(members: int, size: int, exact_after: int) -> None:
    names = [f"n{i}" for i in range(members)]
    value = dict(zip(names, np.random.default_rng(0).standard_normal(members), strict=True))
    mean = np.mean(list(value.values()))
    for first in (0, 5 * exact_after):
        now = dict(value)
        for round in range(first, first + exact_after):
            assert not np.allclose(list(now.values()), mean)
            chosen = {own: on_grid(own, size).chosen(sorted(set(names) - {own}), round) for own in names}
            now = {own: float(np.mean([now[name] for name in (own, *chosen[own])])) for own in names}
        assert np.allclose(list(now.values()), mean)


def test_an_incomplete_grid_comes_near() -> None:
    names = [f"n{i}" for i in range(7)]
    now = dict(zip(names, np.random.default_rng(0).standard_normal(7), strict=True))
    before = np.ptp(list(now.values()))
    for round in range(12):
        chosen = {own: on_grid(own, 3).chosen(sorted(set(names) - {own}), round) for own in names}
        now = {own: float(np.mean([now[name] for name in (own, *chosen[own])])) for own in names}
    assert np.ptp(list(now.values())) < 0.05 * before


def test_groups_change_from_pass_to_pass() -> None:
    names = [f"n{i}" for i in range(9)]
    seen = {frozenset(group) for round in range(20) for group in grid_groups(names, SEED, round, 3)}
    assert len(seen) > 30


def test_alternating_takes_turns() -> None:
    peer_selection = Alternating(matched("a"), EVERYONE, lambda round: round == 3)
    peers = ["b", "c", "d"]
    assert [len(peer_selection.chosen(peers, round)) for round in range(5)] == [1, 1, 1, 3, 1]
    assert [peer_selection.step(peers, round) for round in range(5)] == [1.0] * 5


@given(members=swarms, round=st.integers(0, 50), size=st.integers(2, 6))
def test_members_of_a_group_go_the_same_step(members: list[str], round: int, size: int) -> None:
    selections = {own: GraphSelection(own, SEED, graphs.get("base", group=size)) for own in members}
    others = {own: sorted(set(members) - {own}) for own in members}
    chosen = {own: selections[own].chosen(others[own], round) for own in members}
    steps = {own: selections[own].step(others[own], round) for own in members}
    for own, them in chosen.items():
        assert all({other, *chosen[other]} == {own, *them} for other in them)
        assert {steps[other] for other in them} <= {steps[own]}


def test_who_knows_no_more_than_itself_goes_nowhere() -> None:
    selection = GraphSelection("a", SEED, graphs.get("base", group=4))
    assert (selection.chosen([], 7), selection.step([], 7)) == ([], 1.0)
