"""What is said and believed on a local network, without one: names, TXT records, and hints to the dialler."""

import pytest
import trio
import zeroconf
from gossip_samples import ALICE, BOB, SCOPE
from gossip_swarm import FakeRuntime, identity, swarm, until
from hypothesis import given
from hypothesis import strategies as st

from gossip.core.envelope import Scope
from gossip.core.ids import RunId
from gossip.core.limits import MAX_ADDRESSES
from gossip.discovery.dialler_task import FORGET_AFTER, MAX_HINTS
from gossip.discovery.mdns_task import (
    AGAIN_MAX_S,
    AGAIN_MIN_S,
    LOOK_HOSTS_S,
    LOOK_S,
    MAX_ASKED_AT_ONCE,
    MAX_NAMES,
    Mdns,
    _Heard,
    addresses_of,
    is_local,
    service_type,
    worth_telling,
)

ME, PEER = ALICE.peer_id, BOB.peer_id
HERE = f"/ip4/192.168.1.7/tcp/4001/p2p/{PEER}"


def test_the_services_name_says_nothing_of_the_swarm_and_is_another_for_each_run():
    name = service_type(SCOPE)
    assert name == service_type(SCOPE)
    assert "p2ptrain" not in name
    assert len(name.partition(".")[0]) <= 16, "an underscore, and 15 characters at most (RFC 6763, 7.2)"
    assert name != service_type(Scope(swarm=SCOPE.swarm, run=RunId(b"o" * 16)))


@pytest.mark.parametrize(
    ("address", "local"),
    [
        ("/ip4/192.168.1.7/tcp/1", True),
        ("/ip4/127.0.0.1/tcp/1", True),
        ("/ip6/fe80::1/tcp/1", True),
        ("/ip4/203.0.113.7/tcp/1", False),
        ("/ip6/2001:db8::1/tcp/1", False),
        ("/dns4/victim.example/tcp/1", False),
        ("/ip4/localhost/tcp/1", False),
        ("/memory/7", False),
        ("/ip4", False),
        ("", False),
    ],
)
def test_an_address_is_local_by_its_number(address, local):
    assert is_local(address) is local


def test_loopback_is_told_of_where_there_is_nothing_else():
    inner, lan, public = (f"/ip4/{host}/tcp/1/p2p/{ME}" for host in ("127.0.0.1", "10.0.0.1", "203.0.113.7"))
    assert worth_telling([inner, lan, public]) == [lan]
    assert worth_telling([inner, public]) == [inner]
    assert worth_telling([public]) == []
    assert len(worth_telling([f"/ip4/10.0.0.{n}/tcp/1/p2p/{ME}" for n in range(20)])) == MAX_ADDRESSES


def test_only_local_addresses_of_one_other_peer_are_believed():
    said = {
        b"a0": HERE.encode(),
        b"a1": f"/ip4/203.0.113.7/tcp/1/p2p/{PEER}".encode(),
        b"a2": f"/ip4/192.168.1.7/tcp/1/p2p/{ME}".encode(),
        b"a3": f"/ip4/192.168.1.8/tcp/1/p2p/{identity(5).peer_id}".encode(),
        b"a4": b"\xff",
        b"a5": None,
        b"a6": f"/ip4/192.168.1.9/tcp/1\n/p2p/{PEER}".encode(),
    }
    assert addresses_of(said, ME) == [HERE]
    crowd = {b"%02d" % n: f"/ip4/10.0.0.{n}/tcp/1/p2p/{PEER}".encode() for n in range(90)}
    assert len(addresses_of(crowd, ME)) == MAX_ADDRESSES


@given(st.dictionaries(st.binary(max_size=9), st.none() | st.binary(max_size=255), max_size=40))
def test_any_txt_record_is_read_without_complaint(properties):
    assert addresses_of(properties, ME) == []


def test_names_that_are_heard_are_bounded_and_wait_once():
    it = _Heard()
    for n in range(3 * MAX_NAMES):
        for _ in range(2):
            it.add_service(None, "", str(n))  # type: ignore[arg-type]
    taken = []
    while names := it.take():
        assert len(names) <= MAX_ASKED_AT_ONCE
        taken += names
    assert taken == [str(n) for n in range(2 * MAX_NAMES, 3 * MAX_NAMES)]


@pytest.mark.parametrize(
    "name",
    ["evil._foo._tcp.local.", "evil.local.", "", "{type}", ".{type}", "\x01.{type}", "a.b.{type}", "{long}.{type}"],
)
async def test_a_name_that_zeroconf_raises_at_is_passed_over(name):
    """What a PTR record of our service type leads to is the sender's choice."""
    type_ = service_type(SCOPE)
    hints: list[str] = []
    it = Mdns(scope=SCOPE, me=ME, addresses=list, hint=hints.append, warn=hints.append)
    it._heard.add_service(None, type_, name.format(type=type_, long="x" * 64))  # type: ignore[arg-type]
    it._heard.add_service(None, type_, f"{PEER}.{type_}")  # type: ignore[arg-type]
    lan = Answering()
    await it._look(lan)  # type: ignore[arg-type]
    assert hints == [HERE]
    assert lan.asked == [f"{PEER}.{type_}"]


class Answering:
    """zeroconf's own check of the names, and one answer to all."""

    def __init__(self):
        self.asked: list[str] = []

    def get_service_info(self, type_, name, timeout):
        self.asked.append(name)
        return zeroconf.ServiceInfo(type_, name, properties={"a0": HERE})


async def inline(function, *args, abandon_on_cancel=False):
    await trio.lowlevel.checkpoint()
    return function(*args)


class Lan:
    """zeroconf, opened again and again: `fails` is raised at each opening, and `cut` at the next look."""

    def __init__(self, monkeypatch):
        self.opened = 0
        self.closed = 0
        self.registered = 0
        self.fails: Exception | None = None
        self.cut: Exception | None = None
        self.fails_closing: Exception | None = None
        monkeypatch.setattr("zeroconf.Zeroconf", self.open)
        monkeypatch.setattr("zeroconf.ServiceBrowser", lambda zc, type_, listener: self)
        monkeypatch.setattr("trio.to_thread.run_sync", inline)  # the clock would jump while a thread works
        self.warnings: list[str] = []
        addresses = [f"/ip4/192.168.1.2/tcp/1/p2p/{ME}"]
        self.mdns = Mdns(
            scope=SCOPE, me=ME, addresses=lambda: addresses, hint=self.warnings.append, warn=self.warnings.append
        )

    def open(self, **_):
        self.opened += 1
        if self.fails is not None:
            raise self.fails
        return self

    def register_service(self, info, cooperating_responders):
        self.registered += 1
        if self.cut is not None:
            raise self.cut

    def cancel(self):
        """Stop the browser."""

    def close(self):
        self.closed += 1
        if self.fails_closing is not None:
            raise self.fails_closing


@pytest.mark.parametrize("error", [OSError("no such device"), zeroconf.NotRunningException()])
async def test_after_an_error_of_the_network_it_is_tried_again_ever_more_rarely(error, monkeypatch, autojump_clock):
    """It ended for good at the first error: a Wi-Fi that is gone for a second, or a node that starts before it."""
    lan = Lan(monkeypatch)
    lan.fails = error
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lan.mdns.run)
        await trio.sleep(AGAIN_MIN_S / 2)
        assert lan.opened == 1
        await trio.sleep(3.5 * AGAIN_MIN_S)
        assert lan.opened == 3, "after 10 s, and 20 s later"
        await trio.sleep(10 * AGAIN_MAX_S)
        assert 10 + 3 <= lan.opened <= 10 + 7
        (warning,) = lan.warnings
        assert "multicast DNS does not work here (" in warning
        assert "it is tried again" in warning
        lan.fails = None
        await trio.sleep(AGAIN_MAX_S + LOOK_S)
        assert lan.registered == 1, "it announces us once the network is back"
        nursery.cancel_scope.cancel()


async def test_what_fails_midway_is_closed_announced_anew_and_told_of_once_an_outage(monkeypatch, autojump_clock):
    lan = Lan(monkeypatch)
    lan.cut = OSError("network is unreachable")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lan.mdns.run)
        await trio.sleep(4 * AGAIN_MIN_S)
        assert lan.closed == lan.opened == 3
        lan.cut = None
        await trio.sleep(2 * AGAIN_MAX_S)
        assert (lan.registered, lan.opened) == (4, 4)
        assert len(lan.warnings) == 1
        lan.mdns._told, lan.cut = [], OSError("network is unreachable")
        await trio.sleep(LOOK_S + AGAIN_MIN_S)
        assert len(lan.warnings) == 2, "it had worked for long: this is another outage"
        nursery.cancel_scope.cancel()


async def test_it_is_opened_anew_where_the_machine_has_come_into_another_network(monkeypatch, autojump_clock):
    lan = Lan(monkeypatch)
    hosts = {"192.168.1.2"}
    lan.mdns._hosts = lambda: frozenset(hosts)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lan.mdns.run)
        await trio.sleep(3 * LOOK_HOSTS_S)
        assert (lan.registered, lan.closed) == (1, 0)
        hosts.add("10.0.0.9")
        await trio.sleep(LOOK_HOSTS_S + 2 * LOOK_S)
        assert (lan.registered, lan.closed) == (2, 1)
        assert lan.warnings == []
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("error", [OSError("network is unreachable"), zeroconf.EventLoopBlocked()])
async def test_a_node_stops_where_no_goodbye_can_be_said(error, monkeypatch, autojump_clock):
    lan = Lan(monkeypatch)
    lan.fails_closing = error
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lan.mdns.run)
        await trio.sleep(LOOK_S)
        nursery.cancel_scope.cancel()
    assert lan.closed == 1
    assert lan.warnings == []


async def test_sockets_are_closed_where_nobody_can_listen_on_them(monkeypatch, autojump_clock):
    lan = Lan(monkeypatch)

    def refused(*_, **__):
        raise OSError("too many open files")

    monkeypatch.setattr("zeroconf.ServiceBrowser", refused)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lan.mdns.run)
        await trio.sleep(LOOK_S)
        assert lan.closed == lan.opened == 1
        nursery.cancel_scope.cancel()


async def test_a_hint_becomes_a_neighbour_when_there_is_one(autojump_clock):
    async with swarm() as it:
        one, other = await it.start(1), await it.start(2)
        one.service._dialler.hint(other.address)
        await until(lambda: other.peer in one.service.neighbours(), timeout_s=5)


@pytest.mark.slow
async def test_hints_that_lead_nowhere_are_dropped_and_one_host_is_not_dialled_by_all(autojump_clock):
    async with swarm() as it:
        node: FakeRuntime = await it.start(1)
        dialled: list[str] = []
        real = node.transport.dial

        async def noted(address):
            dialled.append(address)
            return await real(address)

        node.transport.dial = noted
        dialler = node.service._dialler
        for number in range(100, 100 + 2 * MAX_HINTS):
            dialler.hint(f"/memory/victim/{number}/p2p/{identity(number).peer_id}")
        assert len(dialler._hints) == MAX_HINTS
        await trio.sleep(600)
        assert 5 <= len(dialled) <= 12, "a host that does not answer is left alone more and more"
        alone = f"/memory/nobody/p2p/{identity(99).peer_id}"
        dialler.hint(alone)
        await until(lambda: alone not in dialler._hints, timeout_s=600)
        assert dialled.count(alone) == FORGET_AFTER
