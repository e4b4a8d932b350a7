"""Connections over real sockets: however many call, neighbours stay, newcomers are served, and nothing is left behind.

Callers on this machine differ in their network when they bind to 127.0.1.1, 127.0.2.1, ...: a /24 each.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psutil
import pytest
import trio
from libp2p.io.trio import TrioTCPStream
from libp2p.network.connection.raw_connection import RawConnection
from libp2p.peer.id import ID
from libp2p.transport.exceptions import SecurityUpgradeFailure
from libp2p_harness import (
    ECHO,
    PATIENCE_S,
    Choosy,
    Node,
    assert_serves,
    attacking,
    running,
    until,
    upgraded,
    upgrader_with,
)
from multiaddr import Multiaddr

from gossip.transport.connection_limits import ConnectionBounds

QUICK = 1e6
"""Handshakes a second: no pace."""
COUNTS = [600, pytest.param(2000, marks=pytest.mark.soak)]
"""Over all places twice, and seven times."""


def port_of(address: str) -> int:
    return int(Multiaddr(address).value_for_protocol("tcp"))


async def called_from(source: str, address: str) -> tuple[Any, Any]:
    """A connection, upgraded, from an address of this machine: the muxed one, and the socket."""
    there = "::1" if ":" in source else "127.0.0.1"
    stream = TrioTCPStream(await trio.open_tcp_stream(there, port_of(address), local_address=source))
    upgrader, raw = upgrader_with(), RawConnection(stream, True)
    try:
        with trio.fail_after(PATIENCE_S):
            secured = await upgrader.upgrade_security(raw, True, ID.from_string(address.rpartition("/")[2]))
            return await upgrader.upgrade_connection(secured, secured.get_remote_peer()), raw
    except BaseException:
        with trio.CancelScope(shield=True):
            await raw.close()
        raise


@asynccontextmanager
async def open_sockets() -> AsyncIterator[list[Any]]:
    """Collects what must be closed at the end."""
    found: list[Any] = []
    try:
        yield found
    finally:
        with trio.CancelScope(shield=True):
            for each in found:
                await each.close()


@pytest.mark.thorough
@pytest.mark.alone
@pytest.mark.parametrize("count", COUNTS)
async def test_of_so_many_connections_that_stay_the_last_is_served(count: int) -> None:
    """Trap 3: a stock host refuses the 251st for good. Here each stays open at the caller's end as long as it can."""
    victim, friend = Choosy(bounds=ConnectionBounds(handshakes_per_s=QUICK)), Node()
    async with running(victim, friend), open_sockets() as sockets:
        victim.kept = frozenset({friend.peer_id})
        await friend.transport.dial(victim.address)
        descriptors = psutil.Process().num_fds()
        for number in range(count):
            _, raw = await upgraded(victim.address, upgrader_with())
            sockets.append(raw)
            if number >= 300:  # by then it has been let go; only our end of it would be left
                await sockets.pop(0).close()
        await until(lambda: len(victim.transport.peers) <= ConnectionBounds().inbound)
        assert await friend.echo(victim.peer_id) == b"hello"
        assert victim.transport.faults["made_room"] >= count - ConnectionBounds().inbound
        assert psutil.Process().num_fds() - descriptors <= 300 + ConnectionBounds().inbound + 40
        await assert_serves(victim, topic_too=False)
    assert victim.log[0] == ("up", friend.peer_id)
    assert ("lost", friend.peer_id) not in victim.log


async def test_a_network_is_bounded_and_others_keep_their_places() -> None:
    bounds = ConnectionBounds(of_network=3, unbounded_networks=())
    victim, friend = Choosy(bounds=bounds), Node()
    async with running(victim, friend), open_sockets() as sockets:
        quiet, raw = await called_from("127.0.1.1", victim.address)
        sockets.append(raw)
        for number in range(9):
            sockets.append((await called_from(f"127.0.2.{number + 1}", victim.address))[1])
        await until(lambda: victim.transport.faults.get("made_room", 0) == 6)
        await until(lambda: len(victim.transport.peers) == 4)
        await until(lambda: len(victim.log) == 10 + 6)
        assert victim.log[0][1] in victim.transport.peers, "the one that called from elsewhere"
        assert quiet.peer_id == ID.from_string(victim.peer_id)


async def test_trap_24_the_network_of_a_caller_by_ipv6_is_known_and_bounded() -> None:
    """Stock code knows no IPv6 address of a far end: such callers were of no network, and bounded by none."""
    victim = Choosy(listen=("/ip6/::1/tcp/0",), bounds=ConnectionBounds(of_network=3, unbounded_networks=()))
    async with running(victim), open_sockets() as sockets:
        for _ in range(6):
            sockets.append((await called_from("::1", victim.address))[1])
        await until(lambda: victim.transport.faults.get("made_room", 0) == 3)
        await until(lambda: len(victim.transport.peers) == 3)
        assert {victim.transport.network_of(peer) for peer in victim.transport.peers} == {"::/48"}


async def test_trap_24_callers_by_ipv6_are_taken_or_not_by_their_network() -> None:
    """All were refused wherever `network.allow` was set."""
    welcome = Node(listen=("/ip6/::1/tcp/0",), bounds=ConnectionBounds(allow=("::1/128",)))
    closed = Node(listen=("/ip6/::1/tcp/0",), bounds=ConnectionBounds(allow=("2001:db8::/32",)))
    async with running(welcome, closed), open_sockets() as sockets:
        sockets.append((await called_from("::1", welcome.address))[1])
        await until(lambda: len(welcome.transport.peers) == 1)
        with pytest.raises(SecurityUpgradeFailure):
            await called_from("::1", closed.address)
        assert (welcome.transport.faults, closed.transport.faults) == ({}, {"refused_address": 1})


async def test_a_network_full_of_neighbours_takes_nobody_else_and_another_does() -> None:
    victim = Node(bounds=ConnectionBounds(of_network=2, unbounded_networks=()))  # a Node keeps everybody
    async with running(victim), open_sockets() as sockets:
        for _ in range(2):
            sockets.append((await called_from("127.0.2.1", victim.address))[1])
        await until(lambda: len(victim.transport.peers) == 2)
        with pytest.raises(SecurityUpgradeFailure):
            await called_from("127.0.2.9", victim.address)
        await until(lambda: victim.transport.faults == {"too_many_of_network": 1})
        sockets.append((await called_from("127.0.3.1", victim.address))[1])
        await until(lambda: len(victim.transport.peers) == 3)


async def test_who_uses_its_connection_stays_and_the_idler_goes() -> None:
    victim = Choosy(bounds=ConnectionBounds(inbound=3))
    async with running(victim), attacking(victim.address) as user, open_sockets() as sockets:
        await until(lambda: len(victim.transport.peers) == 1)
        (first,) = victim.transport.peers
        for _ in range(6):
            sockets.append((await upgraded(victim.address, upgrader_with()))[1])
            await until(lambda: len([up for up, _ in victim.log if up == "up"]) == len(sockets) + 1)
            stream = await user.stream(ECHO)
            await stream.write(b"x")
            await stream.read(1)
            await stream.close()
        await until(lambda: len(victim.transport.peers) == 3)
        assert first in victim.transport.peers


async def trickle(stream: trio.SocketStream, data: bytes) -> None:
    for byte in data:
        await stream.send_all(bytes([byte]))
        await trio.sleep(0.05)


async def test_a_handshake_that_trickles_is_ended() -> None:
    """One byte now and then was no timeout of any single read."""
    victim = Node(bounds=ConnectionBounds(handshake_s=1.0))
    async with running(victim):
        stream = await trio.open_tcp_stream("127.0.0.1", port_of(victim.address))
        began = trio.current_time()
        with trio.fail_after(PATIENCE_S), pytest.raises(trio.BrokenResourceError):
            await trickle(stream, b"\x13/multistream/1.0.0\n\x07/noise\n" + bytes(1000))
        assert trio.current_time() - began < 20.0, "all of it takes 50 s"
        await until(lambda: victim.transport.faults == {"handshake_timeout": 1})
        await stream.aclose()
        await assert_serves(victim, topic_too=False)


async def test_half_open_sockets_of_one_network_cut_short_nobody_elses_handshake() -> None:
    bounds = ConnectionBounds(handshakes=64, handshakes_of_network=4, handshake_s=PATIENCE_S, unbounded_networks=())
    victim = Node(bounds=bounds)
    async with running(victim):
        slow = await trio.open_tcp_stream("127.0.0.1", port_of(victim.address), local_address="127.0.1.1")
        silent = [
            await trio.open_tcp_stream("127.0.0.1", port_of(victim.address), local_address=f"127.0.2.{number + 1}")
            for number in range(80)
        ]
        await until(lambda: victim.transport.faults.get("handshake_cut_short") == 76)
        await slow.send_all(b"\x13/multistream/1.0.0\n")
        with trio.fail_after(PATIENCE_S):
            assert (await slow.receive_some(100)).endswith(b"/multistream/1.0.0\n"), "it was still waited for"
        for stream in (slow, *silent):
            await stream.aclose()


async def test_handshakes_begin_at_a_pace() -> None:
    """Each costs 6 ms, and the caller no more: a flood of whole handshakes took all of a core."""
    burst, pace = 20, 5.0  # which a busy machine keeps up with
    victim = Choosy(bounds=ConnectionBounds(handshakes_per_s=pace))
    async with running(victim), open_sockets() as sockets:
        began = trio.current_time()
        done: list[float] = []

        async def call() -> None:
            sockets.append((await upgraded(victim.address, upgrader_with()))[1])
            done.append(trio.current_time() - began)

        async with trio.open_nursery() as nursery:
            for _ in range(burst + 20):
                nursery.start_soon(call)
                await trio.lowlevel.checkpoint()
            await until(lambda: len(done) >= burst + 10)
            nursery.cancel_scope.cancel()
        assert all(number <= burst + pace * after + 1 for number, after in enumerate(done, 1)), done


async def test_dialled_peers_that_stay_silent_leave_room_for_more_dials() -> None:
    """Thirty-two of them, as anybody can announce, and a node could dial nobody any more."""
    victim = Choosy(bounds=ConnectionBounds(dialled=2))
    nodes = [Node() for _ in range(4)]
    async with running(victim, *nodes):
        victim.kept = frozenset({nodes[0].peer_id})
        for node in nodes:
            await victim.transport.dial(node.address)
            assert await victim.echo(node.peer_id) == b"hello"
        await until(lambda: victim.transport.peers == {nodes[0].peer_id, nodes[3].peer_id})
        assert victim.transport.faults == {"made_room": 2}
