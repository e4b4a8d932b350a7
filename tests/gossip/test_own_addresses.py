"""Where a node can be dialled, while its machine's network changes."""

import socket
from types import SimpleNamespace

import psutil
import pytest
from gossip_swarm import identity
from multiaddr import Multiaddr

from gossip.transport.libp2p.own_addresses import LOOK_S, OwnAddresses

PEER = identity(1).peer_id


@pytest.fixture
def interfaces(monkeypatch):
    """The machine's IPv4 addresses, to be changed."""
    hosts = ["127.0.0.1"]

    def found():
        return {"any": [SimpleNamespace(family=socket.AF_INET, address=host) for host in hosts]}

    monkeypatch.setattr(psutil, "net_if_addrs", found)
    return hosts


def own(listen, clock):
    return OwnAddresses([Multiaddr(listen)], PEER, lambda: clock[0])


def at(*hosts):
    return tuple(f"/ip4/{host}/tcp/4001/p2p/{PEER}" for host in hosts)


def test_a_node_that_is_carried_elsewhere_can_be_dialled_there(interfaces):
    clock = [0.0]
    addresses = own("/ip4/0.0.0.0/tcp/4001", clock)
    assert addresses.current() == at("127.0.0.1"), "the network was not there when it started"
    interfaces.append("192.0.2.7")
    assert addresses.current() == at("127.0.0.1"), "not looked at more often than that"
    clock[0] += LOOK_S
    assert addresses.current() == at("192.0.2.7", "127.0.0.1")
    interfaces[1:] = ["198.51.100.9"]
    clock[0] += LOOK_S
    assert addresses.current() == at("198.51.100.9", "127.0.0.1")


def test_while_there_is_no_network_the_addresses_of_before_stay(interfaces):
    clock = [0.0]
    interfaces.append("192.0.2.7")
    addresses = own("/ip4/0.0.0.0/tcp/4001", clock)
    before = addresses.current()
    interfaces.pop()
    clock[0] += LOOK_S
    assert addresses.current() == before


def test_who_listens_at_one_address_stays_there(interfaces):
    clock = [0.0]
    addresses = own("/ip4/127.0.0.1/tcp/4001", clock)
    assert addresses.current() == at("127.0.0.1")
    interfaces.append("192.0.2.7")
    clock[0] += LOOK_S
    assert addresses.current() == at("127.0.0.1")
