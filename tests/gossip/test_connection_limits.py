"""Who gets a connection and who makes room: the rules of `places`, without a socket."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossip.core.errors import LocalError
from gossip.core.ids import PeerId
from gossip.transport.connection_limits import LOCAL_NETWORKS, ConnectionBounds, ConnectionSlots, Handshakes, Networks

FRIEND = PeerId("friend")


def stranger(number: int) -> PeerId:
    return PeerId(f"stranger {number}")


def is_friend(peer: PeerId) -> bool:
    return peer.startswith("friend")


@pytest.mark.parametrize(
    ("host", "network"),
    [
        ("203.0.113.7", "203.0.113.0/24"),
        ("203.0.113.250", "203.0.113.0/24"),
        ("203.0.114.7", "203.0.114.0/24"),
        ("2001:db8:1:2::3", "2001:db8:1::/48"),
        ("2001:db8:1:ffff::9%eth0", "2001:db8:1::/48"),
        ("::ffff:203.0.113.7", "203.0.113.0/24"),
        ("127.0.0.1", None),
        ("::ffff:127.0.0.1", None),
        ("192.168.1.4", None),
        ("fe80::1%eth0", None),
        ("::1", None),
        ("a name", None),
        (None, None),
    ],
)
def test_callers_are_told_apart_by_network(host, network):
    assert Networks(LOCAL_NETWORKS).of(host) == network


def test_which_networks_are_unbounded_is_the_operators_choice():
    assert Networks(()).of("127.0.0.1") == "127.0.0.0/24"
    assert Networks(("203.0.113.0/25",)).of("203.0.113.7") is None
    assert Networks(("203.0.113.0/25",)).of("203.0.113.130") == "203.0.113.0/24"


@pytest.mark.parametrize(
    "wrong",
    [
        {"inbound": 0},
        {"of_network": 0},
        {"handshakes": 0},
        {"handshake_s": 0.0},
        {"handshakes_per_s": 0.0},
        {"unbounded_networks": ("loopback",)},
        {"unbounded_networks": ("10.0.0.1/8",)},
    ],
)
def test_bounds_that_cannot_work_are_the_users_mistake(wrong):
    with pytest.raises(LocalError):
        ConnectionBounds(**wrong)


def test_the_longest_unused_stranger_makes_room_and_never_a_neighbour():
    it = ConnectionSlots(4, 4, is_friend)
    assert it.take(0, FRIEND, None) is None
    for number in (1, 2, 3):
        assert it.take(number, stranger(number), None) is None
    it.used(1)
    assert it.take(4, stranger(4), None) == 2
    assert it.take(5, stranger(5), None) == 3
    assert it.take(6, stranger(6), None) == 1
    assert len(it) == 4


def test_one_network_cannot_push_out_another():
    it = ConnectionSlots(100, 3, is_friend)
    for number in range(3):
        it.take(f"quiet {number}", stranger(number), "198.51.100.0/24")
    for number in range(50):
        loser = it.take(number, stranger(100 + number), "203.0.113.0/24")
        assert loser == (None if number < 3 else number - 3)
    assert len(it) == 6


def test_what_is_not_bounded_by_network_is_bounded_in_all():
    it = ConnectionSlots(5, 2, is_friend)
    assert [it.take(number, stranger(number), None) for number in range(7)] == [None] * 5 + [0, 1]


def test_where_only_neighbours_are_there_a_newcomer_is_turned_away_before_its_handshake():
    it = ConnectionSlots(3, 2, is_friend)
    it.take(0, PeerId("friend 0"), "203.0.113.0/24")
    it.take(1, PeerId("friend 1"), "203.0.113.0/24")
    assert it.refusal("203.0.113.0/24") == "too_many_of_network"
    assert it.refusal("198.51.100.0/24") is None
    it.take(2, PeerId("friend 2"), None)
    assert it.refusal("198.51.100.0/24") == "too_many_connections"
    assert it.refusal(None) == "too_many_connections"
    assert it.take(3, stranger(3), None) == 3, "one that slipped in meanwhile has to go itself"
    it.leave(2)
    assert it.refusal(None) is None


@given(
    st.lists(
        st.tuples(st.integers(0, 30), st.booleans(), st.sampled_from(["a", "b", "c", None]), st.sampled_from("tul")),
        max_size=200,
    )
)
def test_the_bounds_hold_whatever_happens(steps):
    it = ConnectionSlots(8, 3, is_friend)
    held = {}
    for key, friendly, network, what in steps:
        if what == "t" and key not in held:
            held[key] = (PeerId("friend" if friendly else "stranger"), network)
            loser = it.take(key, *held[key])
            if loser is not None:
                assert loser == key or not is_friend(held[loser][0])
                del held[loser]
        elif what == "u":
            it.used(key)
        elif what == "l":
            it.leave(key)
            held.pop(key, None)
        assert len(it) == len(held) <= 8
        assert all(sum(its == each for _, its in held.values()) <= 3 for each in "abc")


def test_silent_sockets_of_one_network_cut_short_each_other():
    it = Handshakes(8, 3)
    assert it.begin("honest", "198.51.100.0/24") is None
    losers = [it.begin(number, "203.0.113.0/24") for number in range(50)]
    assert losers == [None] * 3 + list(range(47))
    it.end("honest")
    assert len(it) == 3


def test_of_many_networks_the_most_crowded_waits_least():
    it = Handshakes(8, 3)
    it.begin("honest", "198.51.100.0/24")
    for number in range(7):
        assert it.begin(number, "abc"[number // 3]) is None
    assert [it.begin(f"more {number}", f"network {number}") for number in range(2)] == [0, 3]


def test_callers_that_are_not_bounded_by_network_wait_in_turn():
    it = Handshakes(3, 1)
    assert [it.begin(number, None) for number in range(5)] == [None, None, None, 0, 1]
