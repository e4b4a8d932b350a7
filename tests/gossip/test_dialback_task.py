"""Dial backs: the messages, who may ask, what a majority makes us believe, and services over the in-memory network."""

from contextlib import suppress

import pytest
import trio
from gossip_swarm import identity, swarm, until
from hypothesis import given
from hypothesis import strategies as st
from sizes import thorough_but

from gossip.core.errors import Reason, RemoteError
from gossip.core.messages import Refused, encode_refusal
from gossip.core.wire import pack
from gossip.reachability.dialback import (
    ALL_BURST,
    DIALBACK_PROTOCOL,
    MAX_PORTS,
    OF_HOST_BURST,
    OF_PEER_BURST,
    Grants,
    Sighting,
    encode_ask,
    encode_sighting,
    parse_ask,
    parse_sighting,
    ports_in,
)
from gossip.reachability.dialback_task import ask_to_dial_back
from gossip.reachability.reachability import MISS_HOLDS_S, REACH_HOLDS_S, ReachabilityTracker
from gossip.reachability.reachability_task import _in_words

HERE = "/ip4/192.0.2.1/tcp/4001"
ONE, TWO, THREE, FOUR = (identity(number).peer_id for number in range(1, 5))
HIT, MISS = Sighting(tried=(HERE,), answered=(HERE,)), Sighting(tried=(HERE,), answered=())


def test_the_ports_of_addresses_each_once_and_at_most_four():
    addresses = [f"/ip4/{host}/tcp/{port}/p2p/x" for port in (1, 2, 1, 3, 70000, 4, 5) for host in ("10.0.0.1", "::1")]
    assert ports_in(addresses) == (1, 2, 3, 4)
    assert ports_in(["/dns/tcp.example/tcp/7", "/ip4/1.2.3.4/udp/9"]) == (7,)


@given(st.lists(st.integers(0, 65535), min_size=1, max_size=MAX_PORTS, unique=True))
def test_a_request_comes_back_as_it_was(ports):
    assert parse_ask(encode_ask(ports)) == tuple(ports)


@given(st.binary(max_size=80))
def test_any_bytes_are_a_request_or_a_refusal(raw):
    with suppress(RemoteError):
        assert 1 <= len(parse_ask(raw)) <= MAX_PORTS


@given(st.binary(max_size=80))
def test_any_bytes_are_an_answer_or_a_refusal(raw):
    with suppress(RemoteError):
        assert parse_sighting(raw, [4001]).tried


@pytest.mark.parametrize("ports", [[], [1, 1], [65536], [1, 2, 3, 4, 5]])
def test_a_request_for_too_much_is_refused(ports):
    with pytest.raises(RemoteError):
        parse_ask(pack((ports,)))


def test_an_answer_comes_back_as_it_was_and_nothing_else_than_was_asked():
    raw = encode_sighting({HERE: True, "/ip4/192.0.2.1/tcp/2": False})
    assert parse_sighting(raw, [4001, 2]) == Sighting(tried=(HERE, "/ip4/192.0.2.1/tcp/2"), answered=(HERE,))
    with pytest.raises(RemoteError, match="nobody asked"):
        parse_sighting(raw, [4001])
    with pytest.raises(Refused):
        parse_sighting(encode_refusal(Reason.UNAVAILABLE, "busy"), [4001])


@pytest.mark.parametrize(
    "address",
    [
        "x/tcp/4001",
        "/tcp/4001",
        "/dns4/example.org/tcp/4001",
        "/ip4/1.2.3.4/tcp/4001/p2p/me",
        "/ip4/999.1.1.1/tcp/4001",
    ],
)
def test_what_is_said_to_have_been_tried_is_the_address_of_a_host(address):
    """Two liars put words of theirs into the record that we sign; all who were told it refused and banned us."""
    with pytest.raises(RemoteError, match="nobody asked"):
        parse_sighting(encode_sighting({address: True}), [4001])
    assert parse_sighting(encode_sighting({"/ip6/2001:db8::1/tcp/4001": True}), [4001]).answered


def test_who_asks_too_often_is_charged_and_a_crowd_is_only_refused():
    grants = Grants()
    for _ in range(OF_PEER_BURST):
        grants.take(ONE, "ip4/192.0.2.1", 0.0)
    with pytest.raises(RemoteError) as caught:
        grants.take(ONE, "ip4/192.0.2.1", 0.0)
    assert caught.value.reason is Reason.FLOODED
    reasons = []
    for number in range(10, 10 + ALL_BURST):
        try:
            grants.take(identity(number).peer_id, "ip4/192.0.2.1", 0.0)
        except RemoteError as error:
            reasons.append(error.reason)
    assert reasons == [Reason.UNAVAILABLE] * (ALL_BURST - OF_HOST_BURST + OF_PEER_BURST)
    grants.take(FOUR, "ip4/198.51.100.1", 0.0)  # from elsewhere
    grants.take(ONE, "ip4/192.0.2.1", 3600.0)


def test_a_crowd_of_many_hosts_is_refused_beyond_what_is_granted_in_all():
    grants = Grants()
    for number in range(ALL_BURST):
        grants.take(identity(10 + number).peer_id, f"ip4/192.0.2.{number}", 0.0)
    with pytest.raises(RemoteError) as caught:
        grants.take(ONE, "ip4/198.51.100.1", 0.0)
    assert caught.value.reason is Reason.UNAVAILABLE
    grants.take(ONE, "ip4/198.51.100.1", 1.0)


def test_the_majority_is_believed():
    reach = ReachabilityTracker()
    reach.dialled_back(ONE, MISS, "/ip4/198.51.100.97/tcp/1", now=0.0)
    assert (reach.state(0.0), reach.unreachable(0.0), reach.answering(0.0)) == ("outbound", True, ())
    reach.dialled_back(TWO, HIT, "/ip4/198.51.100.98/tcp/1", now=0.0)
    assert reach.confirmed(0.0, [HERE], 1) == ()
    assert (reach.state(0.0), reach.unreachable(0.0)) == ("outbound", False)  # one says this, one that
    reach.dialled_back(THREE, HIT, "/ip4/198.51.100.99/tcp/1", now=0.0)
    assert (reach.state(0.0), reach.answering(0.0)) == ("reached", (HERE,))
    reach.dialled_back(FOUR, MISS, "/ip4/198.51.100.100/tcp/1", now=0.0)  # in the place of the first
    assert reach.asked(0.0) == {TWO, THREE, FOUR}
    assert reach.confirmed(0.0, (), 1) == (HERE,)
    assert reach.confirmed(0.0, (), 2) == (), "two may lie, and no more than two say it"
    assert reach.state(REACH_HOLDS_S + 1) == "unknown"
    reach.forget()
    assert reach.state(0.0) == "unknown"


def test_one_peer_alone_cannot_say_where_others_are_sent():
    reach = ReachabilityTracker()
    reach.dialled_back(ONE, HIT, "/ip4/198.51.100.97/tcp/1", now=0.0)
    assert (reach.answering(0.0), reach.confirmed(0.0, (), 1)) == ((HERE,), ())
    assert reach.confirmed(0.0, [HERE], 1) == (HERE,)  # the router says so too


def test_nor_can_one_host_with_many_keys():
    """Two keys cost nothing, and the two that are believed could both be one machine's."""
    reach = ReachabilityTracker()
    for peer in (ONE, TWO, THREE):
        reach.dialled_back(peer, HIT, "/ip4/198.51.100.97/tcp/1", now=0.0)
    assert (reach.answering(0.0), reach.confirmed(0.0, (), 1)) == ((HERE,), ())
    reach.dialled_back(FOUR, HIT, "/ip4/198.51.100.98/tcp/1", now=0.0)
    assert reach.confirmed(0.0, (), 1) == (HERE,)


def test_nor_can_one_machine_with_many_addresses_of_ipv6():
    """A link has 2**64 addresses, and a site 65,536 links: each was one more witness."""
    reach = ReachabilityTracker()
    for peer, host in ((ONE, "2606:4700:1::1"), (TWO, "2606:4700:1::2"), (THREE, "2606:4700:1:2::3")):
        reach.dialled_back(peer, HIT, f"/ip6/{host}/tcp/1/p2p/{peer}", now=0.0)
    assert (reach.answering(0.0), reach.confirmed(0.0, (), 1)) == ((HERE,), ())
    reach.dialled_back(FOUR, HIT, f"/ip6/2606:4700:2::1/tcp/1/p2p/{FOUR}", now=0.0)
    assert reach.confirmed(0.0, (), 1) == (HERE,)


@pytest.mark.parametrize("hosts", [("ip4/203.0.113.1", "ip4/203.0.113.2"), ("ip6/fd00::1", "ip6/fd00::2")])
def test_machines_with_addresses_of_their_own_are_two(hosts):
    reach = ReachabilityTracker()
    for peer, host in zip((ONE, TWO), hosts, strict=True):
        reach.dialled_back(peer, HIT, f"/{host}/tcp/1/p2p/{peer}", now=0.0)
    assert reach.confirmed(0.0, (), 1) == (HERE,)


async def test_a_forwarded_port_that_two_reached_is_told_to_others(autojump_clock, monkeypatch):
    """A node that hands out an address of its own LAN, and whose router forwards another port to it."""
    async with swarm() as it:
        first = await it.start(1)
        second = await it.start(2, peers=(first.address,))
        inner = it.make(3, peers=(first.address, second.address))
        outer = inner.address
        await it.launch(inner)
        monkeypatch.setattr(type(inner.transport), "addresses", property(handed_out(inner)))
        inner.service.mapped((outer.partition("/p2p/")[0],))
        told = (outer, f"/memory/77/p2p/{inner.peer}")
        await until(lambda: first.service._engine.peerstore.addresses(inner.peer) == told)


def handed_out(node):
    """Addresses as ever, but for one that stands for an address of the node's LAN."""

    def addresses(self):
        return (f"/memory/77/p2p/{self.peer_id}",) if self is node.transport else (self._address,)

    return addresses


def test_who_was_dialled_is_not_unreachable_whatever_is_said():
    reach = ReachabilityTracker()
    reach.greeted(dialled_us=True, now=0.0)
    reach.dialled_back(ONE, MISS, "/ip4/198.51.100.97/tcp/1", now=0.0)
    assert not reach.unreachable(0.0)


def test_members_that_reach_it_at_different_addresses_have_reached_it():
    """On one machine some call at loopback and some at the local network's address: no address has a majority."""
    other = "/ip4/127.0.0.1/tcp/4001"
    reach = ReachabilityTracker()
    reach.dialled_back(ONE, HIT, "/ip4/192.0.2.9/tcp/1", now=0.0)
    reach.dialled_back(TWO, Sighting(tried=(other,), answered=(other,)), "/ip4/127.0.0.1/tcp/1", now=0.0)
    assert (reach.answering(0.0), reach.state(0.0), reach.unreachable(0.0)) == ((), "reached", False)
    assert _in_words(reach.sightings(0.0), ()) == (
        f"2 of 2 members that were asked can dial this node, at {other}, {HERE}: each at the address that it sees"
    )


def test_as_many_hits_as_misses_are_no_reason_to_say_that_nobody_can():
    words = _in_words((HIT, MISS), ())
    assert words.startswith("1 of 2 members that were asked can dial this node")


def test_a_majority_that_missed_is_counted_without_the_one_that_did_not():
    words = _in_words((HIT, MISS, MISS), ())
    assert words.startswith(f"nobody can dial this node: 2 of 3 members that were asked got no answer at {HERE};")


async def test_who_only_dials_learns_that_it_is_reached(autojump_clock):
    async with swarm() as it:
        one = await it.start(1)
        other = await it.start(2, peers=(one.address,))
        await until(lambda: other.service.reachability() == "reached")
        assert [event.detail for event in other.told("reachability")] == [
            f"others can dial this node at {other.address.partition('/p2p/')[0]}"
        ]


async def test_who_cannot_be_dialled_learns_that_and_how_to_mend_it(autojump_clock):
    async with swarm() as it:
        hidden = it.make(9)
        it.network.hide(hidden.peer)
        nodes = [await it.start(1)]
        nodes += [await it.start(number, peers=(nodes[0].address,)) for number in (2, 3)]
        hidden = it.make(9, peers=(nodes[0].address,))
        await it.launch(hidden)
        await until(
            lambda: "3 members" in hidden.told("reachability")[-1].detail if hidden.told("reachability") else False
        )
        assert hidden.service.reachability() == "outbound"
        assert "forward TCP port" in hidden.told("reachability")[-1].detail


@pytest.mark.parametrize("opened_after_s", thorough_but({30.0}, [30.0, 2500.0]))
async def test_who_opens_its_port_learns_within_minutes_that_it_is_reached(autojump_clock, opened_after_s):
    """What a member had missed held for an hour, and in it nobody was asked again."""
    async with swarm() as it:
        nodes = [await it.start(1)]
        nodes += [await it.start(number, peers=(nodes[0].address,)) for number in (2, 3)]
        hidden = it.make(9, peers=(nodes[0].address,))
        it.network.hide(hidden.peer)
        await it.launch(hidden)
        await trio.sleep(opened_after_s)
        assert hidden.service.reachability() == "outbound"
        it.network.unhide(hidden.peer)
        await trio.sleep(MISS_HOLDS_S + 30)
        assert hidden.service.reachability() == "reached"
        for node in nodes:
            assert (hidden.peer, Reason.FLOODED) not in node.service.stats.rejected, "nobody was asked too often"


async def test_asking_again_and_again_is_charged(autojump_clock):
    async with swarm() as it:
        one = await it.start(1)
        other = await it.start(2, peers=(one.address,))
        await until(lambda: other.service.neighbours() != {})
        refused = []
        for _ in range(2 * OF_PEER_BURST):
            try:
                await ask_to_dial_back(other.transport, one.peer, ports_in([other.address]), 10)
            except Refused as refusal:
                refused.append(refusal.reason)
        assert set(refused) == {Reason.FLOODED}
        assert one.service.stats.rejected[other.peer, Reason.FLOODED] == len(refused) >= OF_PEER_BURST


async def test_garbage_on_the_stream_is_an_offence_and_nothing_more(autojump_clock):
    async with swarm() as it:
        one = await it.start(1)
        other = await it.start(2, peers=(one.address,))
        await until(lambda: other.service.neighbours() != {})
        stream = await other.transport.open_stream(one.peer, DIALBACK_PROTOCOL)
        await stream.send_all(b"\0\0\0\1\xc1")
        await until(lambda: (other.peer, Reason.MALFORMED) in one.service.stats.rejected)
        await stream.reset()
        await trio.sleep(1)
