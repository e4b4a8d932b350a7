"""Shares: which network a peer counts under, and how much of something limited one network may hold."""

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossip.core.ids import PeerId
from gossip.core.networks import (
    PARTS,
    UNKNOWN,
    bounded,
    group_of,
    in_turn,
    largest_share,
    network_at,
    network_of,
    parsed_host,
    share_of,
)


@pytest.mark.parametrize(
    ("host", "network"),
    [
        ("203.0.113.7", "203.0.113.0/24"),
        ("::ffff:203.0.113.7", "203.0.113.0/24"),
        ("2001:db8:1:2::3", "2001:db8:1::/48"),
        ("fe80::1%eth0", "fe80::/48"),
    ],
)
def test_a_host_is_in_one_network_however_it_is_written(host, network):
    address = parsed_host(host)
    assert address is not None
    assert network_at(address) == network


def test_what_an_address_says_of_its_network():
    assert network_of("/ip4/8.8.8.8/tcp/1/p2p/x") == "8.8.8.0/24"
    assert network_of("/ip4/192.168.1.7/tcp/1/p2p/x") == network_of("/memory/1/p2p/x") == ""
    assert network_of("/dns4/a.example/tcp/1") == network_of("/dns6/b.example/tcp/1"), "one wildcard, many names"
    assert network_of("/ip4/8.8.8.8/tcp/1/p2p/relay/p2p-circuit/p2p/x") is None
    assert network_of("/ip4/8.8.8/tcp/1") is None


def test_machines_of_our_own_count_each_for_itself_and_all_behind_relays_as_one():
    one, other = PeerId("one"), PeerId("other")
    assert group_of(one, "") != group_of(other, "")
    assert group_of(one, None) == group_of(other, None) == UNKNOWN
    assert group_of(one, "8.8.8.0/24") == group_of(other, "8.8.8.0/24")


@pytest.mark.parametrize(("groups", "share"), [(0, 8), (1, 8), (2, 4), (3, 3), (4, 2), (20, 2)])
def test_a_group_has_a_quarter_or_an_equal_part_of_fewer(groups, share):
    assert share_of(8, groups) == share
    assert share * max(1, groups) >= 8, "together they may have all"


@pytest.mark.parametrize("places", [1, 2, 3, 4])
def test_a_group_may_always_have_one(places):
    assert share_of(places, 9) == 1


@given(sizes=st.lists(st.integers(1, 60), min_size=1, max_size=30), least=st.integers(1, 5))
def test_of_those_that_count_no_group_has_more_than_its_part(sizes, least):
    share = largest_share(sizes, least)
    counted = [min(size, share) for size in sizes]
    assert share >= least
    assert max(counted) <= max(least, -(-sum(counted) // min(PARTS, len(sizes))))
    if share < max(sizes):
        more = [min(size, share + 1) for size in sizes]
        assert share + 1 > -(-sum(more) // min(PARTS, len(sizes))), "it is the largest such"


def test_twenty_keys_in_one_network_count_as_few_beside_others_and_all_of_one_network_count_all():
    assert largest_share([20, *[1] * 5], 2) == 2
    assert largest_share([20, *[1] * 11], 2) == 4
    assert largest_share([20], 2) == 20
    assert largest_share([10, 10, 10], 2) == 10, "three labs of equal size bound nobody"


def test_the_first_of_each_group_stay():
    peers = [PeerId(name) for name in ("a1", "b1", "a2", "a3", "b2")]
    assert bounded(peers, lambda peer: peer[0], 2) == ["a1", "b1", "a2", "b2"]


@given(sizes=st.lists(st.integers(1, 20), min_size=1, max_size=6), seed=st.integers(0, 99))
def test_groups_take_turns(sizes, seed):
    peers = [PeerId(f"{group}:{number}") for group, size in enumerate(sizes) for number in range(size)]
    drawn = in_turn(peers, lambda peer: peer.partition(":")[0], random.Random(seed))
    assert sorted(drawn) == sorted(peers)
    for count in range(len(drawn) + 1):
        held = Counter(peer.partition(":")[0] for peer in drawn[:count])
        behind = [held[str(group)] for group, size in enumerate(sizes) if held[str(group)] < size]
        assert not behind or max(held.values(), default=0) <= min(behind) + 1
