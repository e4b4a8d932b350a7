"""What a node remembers of rounds before, as far as it decides with whom its rounds count."""

import pytest

from gossip.core.ids import PeerId
from gossip.core.limits import MAX_STOOD_WITH
from gossip.updates.round_members import RoundMembers
from gossip.updates.standing import ARRIVAL_S, LEAD_ROUNDS, Progress

A, B, C = (PeerId(letter) for letter in "ABC")


def members(liars: int = 1) -> RoundMembers:
    return RoundMembers(liars=liars, withstood_by=2 * liars + 1, max_staleness=4, probation_rounds=2)


def progress(it: RoundMembers, applied: dict[PeerId, int | None], now: float = 0.0) -> dict[PeerId, Progress]:
    return it.standing(9, applied, swarm=None, paused=(), now=now).progress


def test_who_has_sent_nothing_is_waited_for_while_our_chain_begins() -> None:
    it = members()
    assert progress(it, {A: None}) == {A: Progress.UNTRACKED}
    it.chain_began(100.0)
    assert progress(it, {A: None}, now=100.0 + ARRIVAL_S - 0.1) == {A: Progress.ARRIVING}
    assert progress(it, {A: None}, now=100.0 + ARRIVAL_S) == {A: Progress.UNTRACKED}


def test_who_is_far_ahead_counts_once_a_round_with_it_withstood_the_liars() -> None:
    it = members()
    applied: dict[PeerId, int | None] = {A: 40, B: 9, C: 9}
    assert progress(it, applied)[A] is Progress.AHEAD
    it.round_outvoted_liars([A, B, C])
    assert progress(it, applied)[A] is Progress.FRESH
    assert it.least_members == 3


def test_a_pair_believes_each_other_until_there_were_more() -> None:
    it = members()
    for _ in range(2):
        it.contributed(A)
        it.round_closed([A])
    own = 10
    assert progress(it, {A: 40}) == {A: Progress.FRESH}
    assert it.swarm_round({A: own + LEAD_ROUNDS}, own=own) == own + LEAD_ROUNDS
    assert it.swarm_round({A: own + LEAD_ROUNDS + 1}, own=own) is None
    assert it.swarm_round({A: own}, own=None) is None, "who has not begun asks otherwise (joining.py)"
    it.round_outvoted_liars([])
    assert progress(it, {A: 40}) == {A: Progress.AHEAD}
    assert it.swarm_round({A: own}, own=own) is None


def test_who_has_not_served_is_not_believed_alone() -> None:
    it = members()
    it.round_closed([A])
    assert it.swarm_round({A: 11}, own=10) is None


@pytest.mark.parametrize("extra", [0, 1, 40])
def test_of_those_with_whom_it_stood_the_newest_are_remembered(extra: int) -> None:
    it = members()
    many = [PeerId(f"{number}") for number in range(MAX_STOOD_WITH + extra)]
    it.round_outvoted_liars(many)
    assert list(it.stood_with) == many[extra:]
    it.round_outvoted_liars(many[extra : extra + 1])
    assert next(reversed(list(it.stood_with))) == many[extra], "it was there again"


def test_donors_are_judged_by_their_own_rounds_alone() -> None:
    assert members().donors(9, {A: 400, B: 5, C: 4}) == {A: 0, B: 4}
