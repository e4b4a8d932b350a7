"""How long an exchange is taken to last: what counts, at once or by the median, and whose measurement decides."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossip.core.ids import Digest, PeerId
from gossip.core.limits import MAX_LINKS
from gossip.updates.exchange_times import MAX_OPEN, WINDOW, ExchangeTimes

NAMES = [PeerId(f"peer-{number}") for number in range(8)]
A, B = NAMES[:2]


def times(*known: PeerId) -> ExchangeTimes:
    return ExchangeTimes(set(known or NAMES))


def receive(it: ExchangeTimes, peer: PeerId, *took: float, seq: int = 1) -> None:
    """Updates of `peer`, each heard of when the one before is applied."""
    now = 0.0
    for number, seconds in enumerate(took, seq):
        it.heard(peer, (1, number), now)
        now += seconds
        it.applied(peer, (1, number), now, delta=True)


def seconds(it: ExchangeTimes, *, quorum: float = 1.0, liars: int = 0) -> float | None:
    return it.seconds(quorum=quorum, liars=liars)


def test_nothing_is_known_before_an_update_has_come():
    it = times()
    assert seconds(it) is None
    it.heard(A, (1, 1), 0.0)
    assert seconds(it) is None


def test_it_takes_from_the_announcement_to_the_answer():
    it = times()
    it.heard(A, (1, 1), 10.0)
    it.heard(A, (1, 1), 12.0)  # announced again
    it.applied(A, (1, 1), 13.0, delta=True)
    assert seconds(it) == 3.0


def test_a_longer_one_counts_at_once_and_a_shorter_one_by_the_median():
    it = times()
    receive(it, A, 1.0, 1.0, 1.0, 5.0)
    assert seconds(it) == 5.0
    receive(it, A, 1.0, seq=10)
    assert seconds(it) == 1.0
    receive(it, B, *[5.0] * WINDOW, 1.0, 1.0)
    assert seconds(it) == 5.0
    receive(it, B, 1.0, seq=20)
    assert seconds(it) == 1.0


def test_only_a_rounds_update_is_an_exchange():
    it = times()
    it.heard(A, (1, 0), 0.0)
    it.applied(A, (1, 0), 50.0, delta=False)
    assert seconds(it) is None
    assert it.delivers(A, 50.0)
    assert not it.delivers(A, 51.0)
    assert not it.delivers(B, 0.0)


def test_what_was_not_announced_says_nothing():
    it = times()
    it.applied(A, (1, 7), 50.0, delta=True)
    assert seconds(it) is None


def test_the_slower_way_counts():
    it = times()
    receive(it, A, 1.0)
    for number in range(WINDOW):
        address = Digest(bytes([number]) * 32)
        it.published(address, 10.0 * number)
        it.delivered(A, address, 10.0 * number + 2.0)
    assert seconds(it) == 2.0
    it.delivered(A, Digest(b"x" * 32), 99.0)  # nobody knows when that was published
    assert seconds(it) == 2.0


def test_what_is_overdue_takes_at_least_the_time_between_two_announcements():
    it = times()
    receive(it, A, 1.0)
    it.heard(A, (1, 2), 10.0)
    it.heard(A, (1, 3), 14.0)
    it.heard(A, (1, 4), 19.0)
    assert seconds(it) == 9.0
    assert it.seconds(quorum=1.0, liars=0, delivered=True) == 1.0
    it.applied(A, (1, 4), 20.0, delta=False)  # caught up with, by a snapshot
    assert seconds(it) == 1.0


def test_one_that_died_has_no_more_to_say():
    it = times()
    receive(it, A, 1.0)
    it.heard(A, (1, 2), 10.0)
    assert seconds(it) == 1.0


def test_who_has_left_is_forgotten():
    known = {A, B}
    it = ExchangeTimes(known)
    receive(it, A, 9.0)
    receive(it, B, 1.0)
    assert seconds(it) == 9.0
    known.remove(A)
    assert seconds(it) == 1.0
    assert not it.delivers(A, 0.0)
    receive(it, A, 9.0, seq=9)
    assert seconds(it) == 1.0


@pytest.mark.parametrize(
    ("count", "quorum", "liars", "expected"),
    [
        *((5, 2 / 3, 0, 4), (5, 2 / 3, 1, 4), (5, 1.0, 1, 4), (8, 2 / 3, 3, 5), (7, 2 / 3, 1, 5), (3, 2 / 3, 1, 2)),
        *((2, 2 / 3, 1, 1), (1, 2 / 3, 1, 1), (1, 2 / 3, 0, 1)),
    ],
)
def test_the_quorums_slowest_decides_and_none_of_the_slowest_f(count, quorum, liars, expected):
    it = times()
    for number, peer in enumerate(NAMES[:count], 1):
        receive(it, peer, float(number))
    assert seconds(it, quorum=quorum, liars=liars) == expected


@given(
    st.lists(st.floats(0.01, 10.0), min_size=3, max_size=7),
    st.integers(1, 3),
    st.floats(0.0, 1e6),
    st.booleans(),
)
def test_no_f_liars_make_an_exchange_longer_than_the_slowest_honest_one(honest, liars, lie, announces):
    """Of at least 2f + 1 neighbours in all: whether they deliver late, or announce and never deliver."""
    liars = min(liars, len(honest) - 1)
    peers = [PeerId(f"p{number}") for number in range(len(honest) + liars)]
    it = ExchangeTimes(set(peers))
    for peer, took in zip(peers, honest, strict=False):
        receive(it, peer, took)
    for peer in peers[len(honest) :]:
        if announces:
            it.heard(peer, (1, 1), 0.0)
            it.heard(peer, (1, 2), lie)
        else:
            receive(it, peer, lie)
    told = seconds(it, quorum=2 / 3, liars=liars)
    assert told is not None
    assert told <= max(honest)


def test_what_is_remembered_of_a_peer_and_of_ourselves_is_bounded():
    it = times()
    for number in range(10 * MAX_OPEN):
        it.heard(A, (1, number), float(number))
        it.published(Digest(number.to_bytes(32, "big")), float(number))
    assert len(it._heard[A]) == MAX_OPEN
    assert len(it._published_at) == MAX_LINKS
