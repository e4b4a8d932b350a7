"""Which address the join line holds."""

import socket
from collections import namedtuple
from pathlib import Path

import psutil
import pytest

from gossip.transport import default_route
from gossip.transport.default_route import default_sources, likely_sources
from node.swarm.parsing import own_place
from node.system.addresses import best_address, is_undialable

BRIDGE, LAN, LOOPBACK = ("/ip4/172.17.0.1/tcp/4001", "/ip4/192.168.1.4/tcp/4001", "/ip4/127.0.0.1/tcp/4001")
LONG_V6 = "/ip6/2001:db8:0:0:0:0:0:4/tcp/4001"


@pytest.mark.parametrize(
    ("addresses", "sources", "best"),
    [
        ([BRIDGE, LAN, LOOPBACK], ["192.168.1.4"], LAN),
        ([BRIDGE, LONG_V6], ["192.168.1.4", "2001:db8::4"], LONG_V6),
        ([LONG_V6, LAN], ["192.168.1.4", "2001:db8::4"], LAN),
        ([LOOPBACK, BRIDGE], [], BRIDGE),
        ([LOOPBACK, "/dns/home.example/tcp/4001"], ["192.168.1.4"], "/dns/home.example/tcp/4001"),
        ([LOOPBACK], ["192.168.1.4"], LOOPBACK),
        (["/ip6/::1/tcp/1", LAN], [], LAN),
    ],
)
def test_the_default_route_comes_first_and_loopback_last(addresses, sources, best):
    assert best_address(addresses, sources) == best


def test_the_system_names_addresses_that_are_this_machines():
    for source in default_sources():
        family = socket.AF_INET6 if ":" in source else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((source, 0))  # OSError for anyone else's
        ours = f"/ip{6 if ':' in source else 4}/{source}/tcp/4001"
        assert best_address([ours], [source]) == ours
    assert len(default_sources()) <= 2


Entry = namedtuple("Entry", "family address")
State = namedtuple("State", "isup")


@pytest.fixture
def no_way_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine on a network that leads nowhere else; the folder has its interfaces that are hardware."""
    interfaces = {
        "docker0": [Entry(socket.AF_INET, "172.17.0.1")],
        "eth0": [
            Entry(socket.AF_INET6, "fd00::4"),
            Entry(socket.AF_INET, "10.1.2.3"),
            Entry(socket.AF_PACKET, "02:42"),
        ],
        "eth1": [Entry(socket.AF_INET, "10.9.9.9")],
        "lo": [Entry(socket.AF_INET, "127.0.0.1"), Entry(socket.AF_INET6, "::1")],
        "wg0": [Entry(socket.AF_INET6, "fe80::1%wg0")],
    }
    monkeypatch.setattr(default_route, "default_source", lambda family: None)
    monkeypatch.setattr(default_route, "_DEVICES", tmp_path)
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: interfaces)
    monkeypatch.setattr(psutil, "net_if_stats", lambda: {name: State(name != "eth1") for name in interfaces})
    return tmp_path


def test_where_no_route_leads_out_the_interfaces_are_named(no_way_out: Path) -> None:
    assert likely_sources() == ("172.17.0.1", "10.1.2.3", "fd00::4"), "that are up"
    (no_way_out / "eth0" / "device").mkdir(parents=True)
    assert likely_sources() == ("10.1.2.3", "fd00::4"), "no bridge, where there is hardware"
    assert best_address([BRIDGE, "/ip4/10.1.2.3/tcp/4001"]) == "/ip4/10.1.2.3/tcp/4001"


def test_a_swarm_on_such_a_network_is_not_founded_on_loopback(
    no_way_out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket.socket, "bind", lambda it, place: None)
    assert own_place()[0] == "172.17.0.1"
    monkeypatch.setattr(psutil, "net_if_addrs", dict)
    assert own_place()[0] == "127.0.0.1"


@pytest.mark.parametrize(
    ("listens_on", "announce", "sources", "undialable"),
    [
        (["/ip4/0.0.0.0/tcp/0"], [], ["2001:db8::4"], True),
        (["/ip4/0.0.0.0/tcp/0"], [], ["192.168.1.4", "2001:db8::4"], False),
        (["/ip4/0.0.0.0/tcp/0"], ["/dns6/a.example/tcp/4001"], ["2001:db8::4"], False),
        (["/ip4/0.0.0.0/tcp/0", "/ip6/::/tcp/0"], [], ["2001:db8::4"], False),
        (["/ip4/0.0.0.0/tcp/0", "/ip6/::1/tcp/0"], [], ["2001:db8::4"], True),
        (["/ip4/127.0.0.1/tcp/0"], [], ["2001:db8::4"], False),  # as `up` does
        (["/ip4/0.0.0.0/tcp/0"], [], [], False),
        ([], [], ["2001:db8::4"], False),
    ],
)
def test_who_has_ipv6_alone_and_listens_on_ipv4_cannot_be_dialled(listens_on, announce, sources, undialable):
    assert is_undialable(listens_on, announce, sources) is undialable
