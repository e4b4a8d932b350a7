"""What each neighbour is for the round that is open, and what follows from it."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossip.core.ids import PeerId
from gossip.updates.standing import LEAD_ROUNDS, Progress, Standing, standing, trusted_far_ahead

A, B, C, D, E = (PeerId(letter) for letter in "ABCDE")
ROUND, MAX_STALENESS = 100, 4
FRESH, STALE, BEHIND = Progress.FRESH, Progress.STALE, Progress.BEHIND
ARRIVING, UNTRACKED = Progress.ARRIVING, Progress.UNTRACKED
UNBELIEVED, AHEAD = Progress.UNBELIEVED, Progress.AHEAD


@pytest.mark.parametrize(
    ("at", "liars", "trusted", "expected"),
    [
        (None, 1, True, UNTRACKED),
        (-1, 1, True, BEHIND),
        (ROUND - MAX_STALENESS - 1, 1, True, BEHIND),
        (ROUND - MAX_STALENESS, 1, True, STALE),
        (ROUND - 1, 1, True, STALE),
        (ROUND, 1, False, FRESH),
        (ROUND + MAX_STALENESS, 1, False, FRESH),
        (ROUND + MAX_STALENESS + 1, 1, False, AHEAD),
        (ROUND + MAX_STALENESS + 1, 1, True, FRESH),
        (ROUND + MAX_STALENESS + 1, 0, False, FRESH),
        (ROUND + LEAD_ROUNDS, 1, True, FRESH),
        (ROUND + LEAD_ROUNDS, 0, False, FRESH),
        (ROUND + LEAD_ROUNDS + 1, 1, True, UNBELIEVED),
        (ROUND + LEAD_ROUNDS + 1, 0, False, UNBELIEVED),
        (ROUND + LEAD_ROUNDS + 1, 1, False, AHEAD),
    ],
)
def test_each_neighbour_is_one_thing(at: int | None, liars: int, trusted: bool, expected: Progress) -> None:
    it = standing(ROUND, {A: at}, MAX_STALENESS, liars=liars, trusted={A} if trusted else ())
    assert it.progress == {A: expected}


def test_who_is_where_the_swarm_is_is_not_ahead() -> None:
    far = ROUND + 10 * LEAD_ROUNDS
    at = {A: far + MAX_STALENESS, B: far + MAX_STALENESS + 1, C: ROUND}
    assert standing(ROUND, at, MAX_STALENESS, liars=1, swarm=far).progress == {A: FRESH, B: AHEAD, C: FRESH}
    assert standing(ROUND, at, MAX_STALENESS, liars=1, swarm=3).progress == {A: AHEAD, B: AHEAD, C: FRESH}


@pytest.mark.parametrize("liars", [1, 2, 3])
def test_of_the_trusted_far_ahead_the_first_by_peer_id_count_and_as_many_as_may_lie(liars: int) -> None:
    far = [PeerId(f"{number}") for number in range(5)]
    at = dict.fromkeys(reversed(far), ROUND + MAX_STALENESS + 1)
    it = standing(ROUND, at, MAX_STALENESS, liars=liars, trusted=far[1:])
    assert sorted(it.staleness) == far[1 : liars + 1]
    assert it.beyond == at.keys() - it.staleness.keys()


def every(**paused: bool) -> Standing:
    """One neighbour of each progress, by its name in small letters; those named are paused."""
    names = {PeerId(it.name.lower()): it for it in Progress}
    staleness = {peer: int(it is STALE) for peer, it in names.items() if it in (FRESH, STALE)}
    return Standing(progress=names, staleness=staleness, paused=frozenset(map(PeerId, paused)))


ALL = {it.name.lower(): True for it in Progress}


@pytest.mark.parametrize(
    ("paused", "behind", "overdue", "candidates"),
    [
        ({}, {"behind"}, {"behind", "arriving", "untracked"}, {"fresh", "stale", "behind", "arriving", "untracked"}),
        ({"behind": True}, set(), {"arriving", "untracked"}, {"fresh", "stale", "arriving", "untracked"}),
        (ALL, set(), set(), set()),
    ],
)
def test_what_is_asked_of_a_round_is_read_off_that(
    paused: dict[str, bool], behind: set[str], overdue: set[str], candidates: set[str]
) -> None:
    it = every(**paused)
    assert (it.fresh, it.arriving, it.neighbours) == (1, 1, 6), "pauses change nothing of this"
    assert it.beyond == {"unbelieved", "ahead"}
    assert it.donors == {"fresh": 0, "stale": 1, "unbelieved": 0, "ahead": 0}
    assert (it.behind, set(it.overdue), set(it.candidates)) == (behind, overdue, candidates)


@pytest.mark.parametrize("progress", Progress)
@pytest.mark.parametrize("is_paused", [False, True])
def test_only_who_is_paused_and_not_here_is_nobody_to_wait_for(progress: Progress, is_paused: bool) -> None:
    it = Standing(progress={A: progress}, staleness={}, paused=frozenset({A} if is_paused else ()))
    assert it.awaits_nobody is (progress is AHEAD or (is_paused and progress is not FRESH))


@pytest.mark.parametrize(
    ("others", "paused", "quorum", "due", "reached"),
    [
        ([STALE], False, 0.5, 0, True),
        ([STALE], False, 0.6, 0, False),
        ([STALE], True, 1.0, 0, True),
        ([ARRIVING], False, 0.6, 0, False),
        ([ARRIVING], True, 1.0, 0, True),
        ([BEHIND, UNTRACKED, UNBELIEVED, AHEAD], False, 1.0, 0, True),
        ([BEHIND], False, 0.5, 1, True),
        ([BEHIND], False, 0.6, 1, False),
    ],
)
def test_a_quorum_is_of_members_of_the_arriving_and_of_what_is_due(
    others: list[Progress], paused: bool, quorum: float, due: int, reached: bool
) -> None:
    around = {PeerId(it.name): it for it in others}
    one = Standing(progress={A: FRESH, **around}, staleness={A: 0}, paused=frozenset(around if paused else ()))
    assert one.quorum_reached(quorum, due=due) is reached
    none = Standing(progress=around, staleness={}, paused=one.paused)
    assert not none.quorum_reached(quorum, due=due), "of nobody there is none"


@pytest.mark.parametrize(
    ("members", "behind", "liars", "least", "leaves"),
    [
        (0, 2, 1, 3, True),
        (1, 2, 1, 3, True),
        (1, 1, 1, 3, False),
        (2, 9, 1, 3, False),
        (2, 9, 1, 5, True),
        (3, 3, 2, 5, True),
        (3, 2, 2, 5, False),
        (4, 3, 2, 5, False),
        (0, 9, 1, 0, False),
    ],
)
def test_who_goes_on_with_too_few_to_withstand_the_liars_leaves_the_others(
    members: int, behind: int, liars: int, least: int, leaves: bool
) -> None:
    near = {PeerId(f"near-{n}"): ROUND for n in range(members)}
    late = {PeerId(f"late-{n}"): 0 for n in range(behind)}
    it = standing(ROUND, {**near, **late}, MAX_STALENESS)
    assert it.leaves_others(least, liars, lambda peer: True) is leaves
    assert not it.leaves_others(least, liars, lambda peer: peer in near), "who delivers nothing is not waited for"
    paused = standing(ROUND, {**near, **late}, MAX_STALENESS, paused=late)
    assert not paused.leaves_others(least, liars, lambda peer: True)


@pytest.mark.parametrize(
    ("outvoted", "withstands", "neighbours", "expected"),
    [
        (False, True, [A], [A]),  # a pair has nobody else
        (False, True, [A, B], [C]),
        (True, True, [A], [C]),
        (True, False, [A, B], [A, B]),  # nobody is withstood
        (False, False, [A, B], [A, B]),
    ],
)
def test_those_far_ahead_are_trusted_with_whom_rounds_withstood_the_liars(
    outvoted: bool, withstands: bool, neighbours: list[PeerId], expected: list[PeerId]
) -> None:
    found = trusted_far_ahead(neighbours, [C], outvoted_liars=outvoted, liars=1, withstands=withstands)
    assert found == expected


PEERS = [PeerId(f"{number}") for number in range(8)]
OFFSETS = (
    st.none()
    | st.integers(-MAX_STALENESS - 2, MAX_STALENESS + 2)
    | st.sampled_from([-ROUND - 1, LEAD_ROUNDS, LEAD_ROUNDS + 1, 2**40])
)
AROUND = st.dictionaries(st.sampled_from(PEERS), OFFSETS.map(lambda by: None if by is None else ROUND + by))
SOME = st.sets(st.sampled_from(PEERS))


@given(applied=AROUND, liars=st.integers(0, 3), trusted=SOME, swarm=st.none() | st.integers(0, 200), paused=SOME)
def test_all_that_follows_agrees_with_what_the_neighbours_are(applied, liars, trusted, swarm, paused) -> None:
    it = standing(ROUND, applied, MAX_STALENESS, liars=liars, trusted=trusted, swarm=swarm, paused=paused)
    front = max(ROUND, swarm or 0)
    assert list(it.progress) == list(applied), "in the order given"
    members = [peer for peer in applied if it.progress[peer] in (FRESH, STALE)]
    assert list(it.staleness) == members
    assert all(it.staleness[peer] == max(0, ROUND - applied[peer]) <= MAX_STALENESS for peer in members)
    assert all(applied[peer] <= front + LEAD_ROUNDS for peer in members)
    far = [peer for peer in members if applied[peer] > front + MAX_STALENESS]
    assert not liars or (len(far) <= liars and trusted.issuperset(far))
    assert it.neighbours == len(applied) - sum(each is AHEAD for each in it.progress.values())
    assert it.donors.keys() == {peer for peer, at in applied.items() if at is not None and at >= ROUND - MAX_STALENESS}
    assert it.behind | {*it.overdue, *it.candidates} <= applied.keys() - it.beyond
    assert it.behind <= set(it.overdue) <= set(it.candidates)
    for quorum in (0.3, 2 / 3, 1.0):
        least = math.ceil(
            quorum * len([peer for peer in members if peer not in paused or it.staleness[peer] == 0]) - 1e-9
        )
        assert it.quorum_reached(quorum) is (it.fresh >= max(1, least))


@given(applied=AROUND, liars=st.integers(0, 3), trusted=SOME, lie=OFFSETS, liar=st.sampled_from(PEERS))
def test_what_one_says_changes_what_one_that_is_not_far_ahead_is_for_nobody_else(
    applied, liars, trusted, lie, liar
) -> None:
    """Those far ahead share as many places as may lie; all others are judged by their own rounds."""
    honest = {peer: at for peer, at in applied.items() if peer != liar and (at or 0) <= ROUND + MAX_STALENESS}
    said = {**honest, liar: None if lie is None else ROUND + lie}
    with_it = standing(ROUND, said, MAX_STALENESS, liars=liars, trusted=trusted)
    without = standing(ROUND, honest, MAX_STALENESS, liars=liars, trusted=trusted)
    assert {peer: with_it.progress[peer] for peer in honest} == without.progress
