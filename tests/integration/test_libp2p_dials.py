"""Dials over real sockets, the addresses that they take, and the mistakes that are named."""

import socket
from contextlib import suppress
from functools import partial

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from libp2p_harness import ECHO, Node, delivered, running, until
from multiaddr import Multiaddr

from gossip.core.errors import LocalError
from gossip.core.identity import Identity
from gossip.transport.base import TransportError
from gossip.transport.libp2p.libp2p_transport import Libp2pConfig, Libp2pTransport
from gossip.transport.libp2p.multiaddrs import parse_dial
from gossip.transport.libp2p.tcp import SEGMENT_BYTES, host_and_port

SOMEBODY = Identity(bytes(32)).peer_id


async def test_disconnecting_and_reconnecting() -> None:
    a, b = Node(), Node()
    async with running(a, b):
        for _ in range(3):
            assert await a.transport.dial(b.address) == b.peer_id
            assert await a.transport.dial(b.address) == b.peer_id
            await until(lambda: a.peer_id in b.transport.peers)
            assert await b.echo(a.peer_id) == b"hello"
            await a.transport.disconnect(b.peer_id)
            await until(lambda: not (a.transport.peers or b.transport.peers))
            with pytest.raises(TransportError, match="not connected"):
                await b.transport.open_stream(a.peer_id, ECHO)
        await a.transport.dial(b.address)
        await delivered(b, a, b"pubsub is back too")
        assert a.log[:6] == [("up", b.peer_id), ("lost", b.peer_id)] * 3


@pytest.mark.parametrize("listen", ["/ip4/127.0.0.1/tcp/0", "/ip6/::1/tcp/0"])
async def test_no_packet_is_longer_than_a_tunnel_takes(listen: str) -> None:
    """Loopback would take 64 kB. Behind a link that drops longer ones without a word, hellos passed and no update."""
    node = Node(listen=(listen,))
    async with running(node):
        stream = await trio.open_tcp_stream(*host_and_port(Multiaddr(node.address)))
        async with stream:
            assert stream.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG) <= SEGMENT_BYTES


async def test_simultaneous_dials_are_one_connection() -> None:
    a, b = Node(), Node()
    async with running(a, b):
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(a.transport.dial, b.address)
        assert len(a.transport._swarm.get_connections()) == 1
        assert a.log == [("up", b.peer_id)]


async def test_dialling_what_is_not_there() -> None:
    a = Node(dial_timeout_s=0.3)
    peer = Node().peer_id
    mute = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = mute[0].socket.getsockname()[1]
    async with running(a):
        with pytest.raises(TransportError, match="no answer in time"):
            await a.transport.dial(f"/ip4/127.0.0.1/tcp/{port}/p2p/{peer}")
        await mute[0].aclose()
        with pytest.raises(TransportError, match="nothing answers"):
            await a.transport.dial(f"/ip4/127.0.0.1/tcp/{port}/p2p/{peer}")
        with pytest.raises(TransportError):
            await a.transport.dial(f"/dns4/no-such-host.invalid/tcp/{port}/p2p/{peer}")


async def test_dialling_somebody_else_than_expected() -> None:
    a, b = Node(), Node()
    async with running(a, b):
        address = b.address.partition("/p2p/")[0] + f"/p2p/{Node().peer_id}"
        with pytest.raises(TransportError, match="another node answers there, with another key"):
            await a.transport.dial(address)
        await until(lambda: not (a.transport.peers or b.transport.peers))


@pytest.mark.parametrize(
    "address",
    ["", "127.0.0.1:4001", "/ip4/127.0.0.1/tcp/1", "/ip4/127.0.0.1/udp/1/quic-v1", "/ip4/127.0.0.1/tcp/1/p2p/abc"],
)
async def test_addresses_that_are_the_users_mistake(address: str) -> None:
    a = Node()
    async with running(a):
        with pytest.raises(LocalError):
            await a.transport.dial(address)


@pytest.mark.parametrize(
    "begin",
    [
        "/ip4/8.8.8.8/ip4/127.0.0.1/tcp/{port}",
        "/ip4/127.0.0.1/tcp/1/tcp/{port}",
        "//ip4/127.0.0.1/tcp/{port}",
        "/tcp/{port}/ip4/127.0.0.1",
        "/p2p/{peer}/ip4/127.0.0.1/tcp/{port}",
        "/dns4/a.example/ip4/127.0.0.1/tcp/{port}",
        "/ip4/127.0.0.1/tcp/{port}/p2p/{peer}",
    ],
)
async def test_an_address_with_two_hosts_or_none_at_its_head_is_dialled_by_nobody(begin: str) -> None:
    """Whether a host may be dialled, and how often, is decided by the first, and the last was dialled: a relay's
    clients had it dial the machines around it, and a victim had as many names as its enemies liked."""
    a, b = Node(), Node()
    async with running(a, b):
        port = Multiaddr(b.address).value_for_protocol("tcp")
        address = f"{begin.format(port=port, peer=b.peer_id)}/p2p/{b.peer_id}"
        for way in (a.transport.dial, a.transport.probe, partial(a.transport.connect_bare, asker=a.peer_id)):
            with pytest.raises(LocalError):
                await way(address)
        assert not a.transport.peers


@given(st.lists(st.sampled_from(["/", "/ip4/1.2.3.4", "/ip4/9.9.9.9", "/dns/a.b", "/tcp/1", "/tcp/2"]), max_size=5))
def test_who_is_dialled_is_who_stands_first(parts: list[str]) -> None:
    address = "".join(parts) + f"/p2p/{SOMEBODY}"
    with suppress(LocalError):
        host, _ = host_and_port(parse_dial(address)[0])
        assert address.split("/")[2] == host


async def test_other_mistakes_are_named() -> None:
    a = Node()
    async with running(a):
        with pytest.raises(TransportError, match="this very node"):
            await a.transport.dial(a.address)
        with pytest.raises(LocalError, match="8193 bytes"):
            await a.transport.publish(bytes(8193))
    with pytest.raises(TransportError, match="not running"):
        await a.transport.open_stream(a.peer_id, ECHO)
    with pytest.raises(LocalError, match="give an IP address"):
        Libp2pConfig(listen=("/dns4/localhost/tcp/0",))
    with pytest.raises(LocalError, match="32 bytes"):
        Libp2pTransport(Libp2pConfig(), b"short")
    elsewhere = Node(listen=("/ip4/192.0.2.1/tcp/0",))
    with pytest.raises(LocalError, match="not an address of this machine"):
        await elsewhere.transport.run(elsewhere)


async def test_addresses_can_be_dialled_and_announced() -> None:
    everywhere = Node(listen=("/ip4/0.0.0.0/tcp/0", "/ip6/::1/tcp/0"))
    announced = Node(announce=("/dns4/example.org/tcp/4001",))
    a = Node()
    async with running(everywhere, announced, a):
        assert announced.transport.addresses == (f"/dns4/example.org/tcp/4001/p2p/{announced.peer_id}",)
        assert not any("/0.0.0.0/" in address for address in everywhere.transport.addresses)
        for address in everywhere.transport.addresses:
            if "/127.0.0.1/" in address or "/::1/" in address:
                await a.transport.dial(address)
                await a.transport.disconnect(everywhere.peer_id)
        assert a.log.count(("up", everywhere.peer_id)) == 2
