"""Which of a machine's addresses come first: a record has room for few, and a machine may have hundreds."""

import socket
from collections import namedtuple
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from multiaddr import Multiaddr

from gossip.context import ServiceContext
from gossip.core.ids import PeerId
from gossip.core.limits import MAX_ADDRESSES
from gossip.transport.libp2p import multiaddrs

Entry = namedtuple("Entry", "family address")
ME = PeerId("12D3KooWBqR1")
BRIDGES = [f"172.{number}.0.1" for number in range(17, 32)]


@pytest.fixture
def docked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on a home network, with a bridge for each of fifteen compositions of containers."""
    found = {
        "lo": [Entry(socket.AF_INET, "127.0.0.1"), Entry(socket.AF_INET6, "::1")],
        "eth0": [
            Entry(socket.AF_INET, "192.168.1.4"),
            Entry(socket.AF_INET6, "2600::4"),
            Entry(socket.AF_INET6, "fe80::1%eth0"),
        ],
        **{f"br-{host}": [Entry(socket.AF_INET, host)] for host in BRIDGES},
    }
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: found)
    monkeypatch.setattr(multiaddrs, "likely_sources", lambda: ("192.168.1.4", "2600::4"))


def hosts(*bound: str) -> list[str]:
    return [address.split("/")[2] for address in multiaddrs.dialable(map(Multiaddr, bound), ME)]


@pytest.mark.usefixtures("docked")
def test_what_leads_out_of_the_machine_comes_before_its_bridges_and_loopback_last() -> None:
    found = hosts("/ip4/0.0.0.0/tcp/4001", "/ip6/::/tcp/4001")
    assert found == ["192.168.1.4", "2600::4", *BRIDGES, "127.0.0.1", "::1"]
    assert len(BRIDGES) > MAX_ADDRESSES


@pytest.mark.usefixtures("docked")
def test_where_it_was_told_to_listen_comes_in_that_order() -> None:
    assert hosts("/ip4/127.0.0.1/tcp/4001", "/ip4/172.20.0.1/tcp/4001") == ["127.0.0.1", "172.20.0.1"]


async def test_where_peers_reached_it_comes_before_its_own_addresses_and_after_relays() -> None:
    """A router's address is confirmed by those who dialled it: beyond a record's room nobody would hear of it."""
    own = [f"/ip4/{host}/tcp/4001/p2p/{ME}" for host in BRIDGES]
    it: Any = SimpleNamespace(
        reach=SimpleNamespace(confirmed=lambda *_: ["/ip4/203.0.113.7/tcp/4001"]),
        relayed={"R": SimpleNamespace(address=f"/ip4/8.8.8.8/tcp/1/p2p/R/p2p-circuit/p2p/{ME}")},
        mapped=[],
        liars=1,
        engine=SimpleNamespace(me=ME),
        transport=SimpleNamespace(addresses=own),
    )
    found = ServiceContext.addresses(it)
    assert found == (f"/ip4/8.8.8.8/tcp/1/p2p/R/p2p-circuit/p2p/{ME}", f"/ip4/203.0.113.7/tcp/4001/p2p/{ME}", *own)
