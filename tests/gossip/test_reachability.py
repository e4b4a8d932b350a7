"""Reachability is known only from peers that dialled: the rule by itself, and services over the in-memory network."""

from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import pytest
import trio
from gossip_swarm import CONFIG, RUN, identity, swarm, until

from gossip.core.ids import RunId
from gossip.reachability.dialback import OF_PEER_PER_S, Sighting
from gossip.reachability.reachability import REACH_HOLDS_S, ReachabilityTracker
from gossip.reachability.reachability_task import ReachabilityTask


@pytest.fixture
def unasked(monkeypatch):
    """Nobody asks to be dialled back: hellos alone speak."""

    async def rest(self):
        await trio.sleep_forever()

    monkeypatch.setattr(ReachabilityTask, "run", rest)


def test_before_any_hello_nothing_is_known():
    assert ReachabilityTracker().state(0.0) == "unknown"


def test_hellos_over_dialled_connections_prove_nothing():
    reach = ReachabilityTracker()
    reach.greeted(dialled_us=False, now=5.0)
    assert reach.state(5.0) == "outbound"


def test_one_peer_that_dialled_is_a_proof_whatever_comes_after():
    reach = ReachabilityTracker()
    reach.greeted(dialled_us=True, now=5.0)
    reach.greeted(dialled_us=False, now=6.0)
    assert reach.state(6.0) == "reached"


def test_a_proof_grows_old_and_so_does_the_lack_of_one():
    reach = ReachabilityTracker()
    reach.greeted(dialled_us=True, now=0.0)
    reach.greeted(dialled_us=False, now=10.0)
    assert reach.state(REACH_HOLDS_S) == "reached"
    assert reach.state(REACH_HOLDS_S + 1) == "outbound"
    assert reach.state(REACH_HOLDS_S + 11) == "unknown"


def test_every_hello_renews_the_proof():
    reach = ReachabilityTracker()
    for beat in range(3):
        reach.greeted(dialled_us=True, now=beat * REACH_HOLDS_S)
    assert reach.state(2.5 * REACH_HOLDS_S) == "reached"


async def test_who_was_dialled_is_reachable_and_who_only_dials_is_not_known_to_be(unasked, autojump_clock):
    async with swarm() as it:
        dialled = await it.start(1)
        assert dialled.service.reachability() == "unknown"
        dialling = await it.start(2, peers=(dialled.address,))
        await until(lambda: dialled.service.neighbours() and dialling.service.neighbours())
        assert (dialled.service.reachability(), dialling.service.reachability()) == ("reached", "outbound")
        third = await it.start(3, peers=(dialling.address,))
        await until(lambda: len(third.service.neighbours()) == 2)
        assert dialling.service.reachability() == "reached"
        assert third.service.reachability() == "outbound"


async def test_both_ends_of_one_hello_learn_from_it(unasked, autojump_clock, monkeypatch):
    async with swarm() as it:
        dialled = await it.start(1)
        monkeypatch.setattr(dialled.service._dialler, "_greet_some", lambda nursery: None)  # it only answers
        dialling = await it.start(2, peers=(dialled.address,))
        await until(lambda: dialled.service.neighbours() and dialling.service.neighbours())
        assert trio.current_time() < CONFIG.heartbeat_s / 2
        assert (dialled.service.reachability(), dialling.service.reachability()) == ("reached", "outbound")


async def test_one_at_a_port_that_says_no_hello_of_the_run_proves_nothing(unasked, autojump_clock):
    async with swarm() as it:
        ours = await it.start(1)
        stranger = await it.start(2, peers=(ours.address,), run=replace(RUN, run_id=RunId(b"x" * 16)))
        await until(lambda: stranger.told("rejected"))
        assert ours.service.reachability() == "unknown"


@pytest.mark.thorough
async def test_the_proof_lasts_as_long_as_the_connection_and_an_hour_beyond_it(unasked, autojump_clock):
    async with swarm() as it:
        dialled = await it.start(1)
        dialling = await it.start(2, peers=(dialled.address,))
        await trio.sleep(2 * REACH_HOLDS_S)
        assert (dialled.service.reachability(), dialling.service.reachability()) == ("reached", "outbound")
        dialling.scope.cancel()
        await trio.sleep(0.9 * REACH_HOLDS_S)
        assert dialled.service.reachability() == "reached"
        await trio.sleep(0.2 * REACH_HOLDS_S)
        assert dialled.service.reachability() == "unknown"


@pytest.mark.thorough
@pytest.mark.parametrize("again", ["dialled", "dials"])
async def test_who_comes_back_by_our_dial_does_not_renew_it(unasked, autojump_clock, again):
    """As behind a router that was given another address: we still get out, and nobody gets in."""
    async with swarm() as it:
        one = await it.start(1)
        other = await it.start(2, peers=(one.address,))
        await until(lambda: one.service.neighbours())
        other.scope.cancel()
        await until(lambda: not one.service.neighbours())
        peers = (one.address,) if again == "dialled" else ()
        back = await it.start(2, peers=peers)
        if not peers:
            await one.transport.dial(back.address)
        await until(lambda: one.service.neighbours())
        await trio.sleep(1.1 * REACH_HOLDS_S)
        assert one.service.reachability() == ("reached" if again == "dialled" else "outbound")


async def test_what_others_found_counts_no_more_when_our_addresses_have_changed(autojump_clock):
    """A machine that is carried elsewhere said that others reach it where it was, for up to an hour."""
    reach = ReachabilityTracker()
    transport = SimpleNamespace(addresses=("/ip4/192.0.2.1/tcp/1",), peers=frozenset())
    engine = SimpleNamespace(companions=frozenset())
    task = ReachabilityTask(SimpleNamespace(reach=reach, transport=transport, engine=engine, mapped=[]))
    await task._ask_some()
    sighting = Sighting(tried=("/ip4/192.0.2.1/tcp/1",), answered=("/ip4/192.0.2.1/tcp/1",))
    reach.dialled_back(identity(1).peer_id, sighting, "/ip4/198.51.100.1/tcp/1", trio.current_time())
    await task._ask_some()
    assert reach.answering(trio.current_time()) == ("/ip4/192.0.2.1/tcp/1",)
    transport.addresses = ("/ip4/203.0.113.1/tcp/1",)
    await task._ask_some()
    assert reach.sightings(trio.current_time()) == ()


async def test_interfaces_that_come_and_go_have_nobody_asked_too_often(autojump_clock, monkeypatch):
    """Containers bring and take addresses of a machine: each change has the others dial us back, and who asks again and
    again is charged for it."""
    peer, reach, asked = identity(1).peer_id, ReachabilityTracker(), []
    transport = SimpleNamespace(addresses=("/ip4/192.0.2.1/tcp/1",), peers=frozenset({peer}))
    engine = SimpleNamespace(companions=frozenset({peer}), me=identity(2).peer_id)
    task = ReachabilityTask(SimpleNamespace(reach=reach, transport=transport, engine=engine, mapped=[]))

    async def ask(peer, ports):
        asked.append(trio.current_time())

    monkeypatch.setattr(task, "_ask", ask)
    for number in range(2000):
        transport.addresses = (f"/ip4/192.0.2.{number % 2}/tcp/1",)
        await task._ask_some()
        await trio.sleep(1)
    assert len(asked) > 3
    assert min(later - earlier for earlier, later in pairwise(asked)) >= 1 / OF_PEER_PER_S
