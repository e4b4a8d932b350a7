"""Seconds of work: what a neighbour's updates may cost, what rounds grant, what time does, and who is told."""

import pytest

from gossip.core.ids import PeerId
from gossip.core.rate_limit import KeyedTokenBucket, TokenBucket
from gossip.core.work_limit import (
    BURST_S,
    IDLE_SHARE,
    LEAST_WORK_S,
    PEER_BURST_S,
    PEER_SHARE,
    ROUND_UPDATES,
    ROUNDS_SAVED,
    SHARE,
    TOLD_BURST,
    WorkLimit,
)

OURS_S = 0.010
"""To write one of our own updates: q2, 3.2M parameters."""
SLOWEST_S = 18 * 0.005
"""To read one by the slowest codec: eighteen times what q2 takes."""
ROUND_S = 1.0
RUN_S = 600.0


def peers(count: int) -> dict[PeerId, None]:
    return dict.fromkeys(PeerId(f"peer {number}") for number in range(count))


def take_all(budget: WorkLimit, costs: dict[PeerId, float], *, seconds: float = RUN_S, per_s: float = 20.0) -> float:
    """Everybody publishes so often, and is read as soon as its budget allows; the work of all, in seconds."""
    now = 0.0
    for tick in range(int(seconds * per_s)):
        now = tick / per_s
        if now % ROUND_S < 1 / per_s:
            budget.trained(OURS_S)
        for peer, cost in costs.items():
            if budget.pause(peer, now) == 0.0:
                budget.spend(peer, cost, now)
    return budget.total


def test_twenty_updates_a_second_by_the_slowest_codec_take_a_small_share():
    here = peers(1)
    work = take_all(WorkLimit(here.keys()), dict.fromkeys(here, SLOWEST_S))
    bound = RUN_S * (ROUND_UPDATES * OURS_S / ROUND_S + PEER_SHARE) + PEER_BURST_S + ROUNDS_SAVED * OURS_S + SLOWEST_S
    assert work <= bound < 0.05 * RUN_S
    assert SLOWEST_S * 20 > 1.0, "more than a core, if it were taken as it comes"


@pytest.mark.slow
def test_eight_of_them_share_a_tenth_of_a_core_beyond_what_rounds_grant():
    here = peers(8)
    work = take_all(WorkLimit(here.keys()), dict.fromkeys(here, SLOWEST_S))
    each = ROUND_UPDATES * OURS_S / ROUND_S * RUN_S + ROUNDS_SAVED * OURS_S + SLOWEST_S
    assert work <= SHARE * RUN_S + BURST_S + 8 * each


def test_identities_in_turn_have_no_more_than_all_together():
    here: dict[PeerId, None] = {}
    budget, now = WorkLimit(here.keys()), 0.0
    budget.trained(OURS_S)
    for number in range(2000):
        here.clear()
        here[peer := PeerId(f"peer {number}")] = None
        for _ in range(6):
            now += 0.05
            if budget.pause(peer, now) == 0.0:
                budget.spend(peer, SLOWEST_S, now)
    assert budget.total <= SHARE * now + BURST_S + SLOWEST_S
    assert len(budget) <= 1


def test_an_honest_neighbour_is_read_every_round_whatever_seven_others_send():
    """Also by a codec that takes nearly twice as long to read as ours to write."""
    here = peers(8)
    honest, *liars = here
    budget, paused, now = WorkLimit(here.keys()), 0, 0.0
    for round_ in range(100):
        budget.trained(OURS_S)
        for tick in range(20):
            now = round_ + tick / 20
            for peer in liars:
                if budget.pause(peer, now) == 0.0:
                    budget.spend(peer, SLOWEST_S, now)
            if tick == 10:
                paused += budget.pause(honest, now) > 0.0
                budget.spend(honest, 1.9 * OURS_S, now)
    assert paused == 0


def test_cheap_updates_are_bounded_by_rounds_as_well():
    here = peers(1)
    budget = WorkLimit(here.keys())
    (peer,) = here
    taken, now, seconds = 0, 0.0, 200
    for tick in range(20 * seconds):
        now = tick / 20
        if tick % 100 == 0:  # rounds of five seconds
            budget.trained(0.001)
        if budget.pause(peer, now) == 0.0:
            budget.spend(peer, 0.0002, now)
            taken += 1
    assert taken <= seconds * (ROUND_UPDATES / 5 + PEER_SHARE / LEAST_WORK_S) + PEER_BURST_S / LEAST_WORK_S + 8
    assert taken < 20 * seconds / 2


def test_who_was_away_catches_up_at_once():
    here = peers(1)
    (peer,) = here
    budget = WorkLimit(here.keys())
    for _ in range(20):
        budget.trained(OURS_S)
    for _ in range(8):
        assert budget.pause(peer, 0.0) == 0.0
        budget.spend(peer, OURS_S / 2, 0.0)


@pytest.mark.slow
def test_a_node_that_does_not_train_reads_with_half_of_a_core():
    here = peers(8)
    budget = WorkLimit(here.keys())
    now = 0.0
    for tick in range(20 * 2000):
        now = tick / 20
        for peer in here:
            if budget.pause(peer, now) == 0.0:
                budget.spend(peer, SLOWEST_S, now)
    assert 0.9 * IDLE_SHARE * now < budget.total < 1.1 * IDLE_SHARE * now


def test_who_left_and_owes_still_owes_when_it_comes_back():
    here = peers(1)
    (peer,) = here
    budget = WorkLimit(here.keys())
    budget.trained(OURS_S)
    budget.spend(peer, 10.0, 0.0)
    here.clear()
    budget.spend(peer, 1.0, 0.0)  # it was in the runtime's hands
    here[peer] = None
    assert budget.pause(peer, 0.0) > 60.0
    assert budget.spent() == {peer: 10.0}


def test_a_neighbour_that_is_held_back_is_told_of_once_and_a_crowd_fills_no_log():
    here = peers(40)
    budget = WorkLimit(here.keys())
    budget.trained(OURS_S)
    first = next(iter(here))
    budget.spend(first, 0.09, 0.0)
    assert "90.0 ms to read, and ours 10.0 to write" in (budget.complaint(first, 0.0) or "")
    assert budget.complaint(first, 10.0) is None
    told = [budget.complaint(peer, 10.0) for peer in here]
    assert sum(each is not None for each in told) == TOLD_BURST - 1
    assert budget.complaint(first, 700.0) is not None


def test_a_debt_is_paid_by_time_and_never_saved_beyond_the_burst():
    bucket = TokenBucket(burst=2.0, per_s=0.5)
    assert bucket.take(2.0, 0.0)
    assert not bucket.take(0.1, 0.0)
    bucket.spend(3.0, 0.0)
    assert bucket.pause(0.0) == pytest.approx(6.0)
    assert bucket.pause(6.0) == 0.0
    assert bucket.left(1e6) == 2.0
    many = KeyedTokenBucket(burst=1.0, per_s=1.0)
    many.spend("a", 5.0, 0.0)
    assert (many.pause("a", 1.0), many.pause("b", 1.0)) == (3.0, 0.0)
    assert not many.has("a", 4.5)
    assert many.take("b", 1.0)
    assert not many.take("b", 1.5)
