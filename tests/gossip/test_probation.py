"""Who counts in full, and how many seats those on probation have together."""

from hypothesis import given
from hypothesis import strategies as st

from gossip.core.ids import PeerId
from gossip.updates.probation import MAX_REMEMBERED, Probation

ROUNDS = 8
OLD = [PeerId(f"old{n}") for n in range(4)]
NEW = [PeerId(f"new{n}") for n in range(20)]


def begun(seats: int = 1) -> Probation:
    it = Probation(rounds=ROUNDS, seats=seats)
    it.round_closed(OLD)
    return it


def serve(it: Probation, peers: list[PeerId], rounds: int = 1) -> None:
    for _ in range(rounds):
        for peer in peers:
            it.contributed(peer)
        it.round_closed([*OLD, *NEW])


def test_before_the_first_round_all_count() -> None:
    assert Probation(rounds=ROUNDS, seats=1).seated(NEW) == NEW


def test_those_of_the_first_round_count_in_full_and_a_crowd_for_as_many_as_may_lie() -> None:
    for seats in (1, 2, 3):
        assert begun(seats).seated([*NEW, *OLD]) == [*NEW[:seats], *OLD]


def test_where_nobody_may_lie_nobody_is_on_probation() -> None:
    assert begun(0).seated([*NEW, *OLD]) == [*NEW, *OLD]


def test_served_rounds_end_it_and_mere_presence_or_speed_does_not() -> None:
    it = begun()
    serve(it, NEW[:1], ROUNDS - 1)
    for _ in range(100):  # many updates in one round are one round
        it.contributed(NEW[0])
    assert not it.established(NEW[0])
    serve(it, [], 100)
    assert it.established(NEW[0])
    assert not it.established(NEW[1])


def test_who_has_served_longest_has_the_seat() -> None:
    it = begun()
    serve(it, NEW[3:4], 2)
    serve(it, NEW[:3])
    assert it.seated(NEW) == [NEW[3]]


def test_a_lost_connection_costs_no_standing() -> None:
    it = begun()
    serve(it, NEW[:1], ROUNDS)
    it.round_closed(OLD)
    assert it.seated([*NEW, *OLD]) == [NEW[0], NEW[1], *OLD]


def test_a_crowd_that_comes_and_goes_pushes_out_nobody_who_has_served_longer() -> None:
    it = begun()
    serve(it, NEW, ROUNDS)
    for number in range(3 * MAX_REMEMBERED):
        peer = PeerId(f"crowd{number}")
        it.contributed(peer)
        it.round_closed([peer])
        assert len(it) <= MAX_REMEMBERED
    assert all(map(it.established, NEW))


def test_who_comes_after_many_have_served_is_counted_in_full_all_the_same() -> None:
    it = begun()
    for number in range(MAX_REMEMBERED):
        peer = PeerId(f"gone{number}")
        for _ in range(ROUNDS):
            it.contributed(peer)
            it.round_closed([peer])
    serve(it, NEW, ROUNDS)
    assert all(map(it.established, NEW))
    assert len(it) == MAX_REMEMBERED
    assert it.established(PeerId(f"gone{MAX_REMEMBERED - 1}")), "the longest gone make room"


def test_more_neighbours_than_are_remembered_are_no_error() -> None:
    it, many = begun(), [PeerId(f"many{number}") for number in range(MAX_REMEMBERED + 2)]
    for peer in many:
        it.contributed(peer)
        it.round_closed(many)
    assert len(it) == MAX_REMEMBERED


@given(st.lists(st.lists(st.sampled_from([*OLD, *NEW]), max_size=12), max_size=20), st.integers(0, 4))
def test_at_most_so_many_seats_are_theirs_whoever_serves_when(history, seats) -> None:
    it = begun(seats)
    for contributors in history:
        serve(it, contributors)
    seated = it.seated([*NEW, *OLD])
    assert set(OLD) <= set(seated)
    assert sum(not it.established(peer) for peer in seated) <= seats
    assert [peer for peer in NEW if it.established(peer)] == [
        peer for peer in seated if peer in NEW and it.established(peer)
    ]


def test_who_is_vouched_for_counts_at_once() -> None:
    """After a restart: who had served before is no newcomer, and the others are."""
    it = Probation(rounds=ROUNDS, seats=1)
    it.vouch(NEW[:2])
    it.round_closed([])
    assert it.seated(NEW) == NEW[:3]
    it.vouch([PeerId(f"more{n}") for n in range(2 * MAX_REMEMBERED)])
    assert len(it) == MAX_REMEMBERED


def test_who_is_there_since_the_first_round_alone_is_a_newcomer_where_others_are_known_to_have_served() -> None:
    it = Probation(rounds=ROUNDS, seats=1)
    it.vouch([])
    it.round_closed(OLD)
    assert all(map(it.is_no_newcomer, OLD)), "nobody was known before"
    it.vouch(OLD[:1])
    assert [peer for peer in OLD if it.is_no_newcomer(peer)] == OLD[:1]
    assert list(filter(it.established, OLD)) == OLD[:1]
    assert it.seated([*NEW, *OLD]) == [NEW[0], OLD[0]]
    serve(it, OLD[1:2], ROUNDS)
    assert [peer for peer in OLD if it.is_no_newcomer(peer)] == OLD[:2]
    assert not any(map(it.is_no_newcomer, NEW))
