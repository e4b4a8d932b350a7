"""The libp2p transport over real sockets: what the contract suite cannot ask of every transport."""

import hashlib
import os
from pathlib import Path

import pytest
import trio
from libp2p.peer.id import ID
from libp2p.peer.peerinfo import info_from_p2p_addr
from libp2p.pubsub.gossipsub import PROTOCOL_ID_V11, GossipSub
from libp2p.pubsub.pubsub import Pubsub
from libp2p.tools.anyio_service import background_trio_service
from libp2p_harness import ECHO, HOLD, PATIENCE_S, Node, delivered, receive_exactly, running, stock, until
from multiaddr import Multiaddr

from gossip.core.identity import Identity
from gossip.transport.base import TransportError
from gossip.transport.libp2p.libp2p_transport import Libp2pConfig, Libp2pTransport


async def test_the_peer_id_is_that_of_the_identity() -> None:
    seed = os.urandom(32)
    assert Libp2pTransport(Libp2pConfig(), seed).peer_id == Identity(seed).peer_id


async def test_64_mib_arrive_whole() -> None:
    a, b = Node(), Node()
    data = os.urandom(1 << 20)
    sent, received = hashlib.blake2b(), hashlib.blake2b()
    async with running(a, b):
        await a.transport.dial(b.address)
        stream = await a.transport.open_stream(b.peer_id, ECHO)

        async def send() -> None:
            for number in range(64):
                piece = number.to_bytes(4, "big") + data[4:]
                sent.update(piece)
                await stream.send_all(piece)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            for _ in range(64):
                received.update(await receive_exactly(stream, 1 << 20))
    assert received.digest() == sent.digest()


async def test_both_directions_and_several_streams_at_once() -> None:
    a, b = Node(), Node()
    async with running(a, b):
        await a.transport.dial(b.address)
        data = os.urandom(4 << 20)
        answers: list[bytes] = []

        async def echo(one: Node, other: Node) -> None:
            answers.append(await one.echo(other.peer_id, data))

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(echo, a, b)
                nursery.start_soon(echo, b, a)
        assert answers == [data] * 6


async def test_a_cancelled_sender_harms_nobody_else() -> None:
    a, b = Node(), Node()
    async with running(a, b):
        await a.transport.dial(b.address)
        for _ in range(20):
            stream = await a.transport.open_stream(b.peer_id, HOLD)
            with trio.move_on_after(0.005):
                await stream.send_all(os.urandom(8 << 20))
            await stream.reset()
        data = os.urandom(1 << 20)
        assert await a.echo(b.peer_id, data) == data
        assert a.transport.faults == {}


async def test_cancelled_openings_leak_no_streams() -> None:
    a, b = Node(), Node()
    async with running(a, b):
        await a.transport.dial(b.address)
        for _ in range(200):
            with trio.CancelScope() as scope:
                scope.cancel()
                await a.transport.open_stream(b.peer_id, ECHO)
        for _ in range(100):
            await a.echo(b.peer_id)
        await until(lambda: open_streams(a) <= 3)  # pubsub's, one each way


def open_streams(node: Node) -> int:
    return sum(len(connection.muxed_conn.streams) for connection in node.transport._swarm.get_connections())


async def test_a_reader_that_hangs_up_frees_the_writer() -> None:
    a, b = Node(), Node()
    async with running(a, b):
        await a.transport.dial(b.address)
        stream = await a.transport.open_stream(b.peer_id, HOLD)
        async with trio.open_nursery() as nursery:

            async def send() -> None:
                with pytest.raises(TransportError):
                    await stream.send_all(bytes(1 << 20))

            nursery.start_soon(send)
            await until(lambda: b.held)
            await b.held[0].reset()


async def test_the_end_of_a_stream_is_clean_and_that_of_a_connection_is_not() -> None:
    a, b = Node(), Node()
    async with running(a, b):
        await a.transport.dial(b.address)
        stream = await a.transport.open_stream(b.peer_id, HOLD)
        await stream.send_all(b"last words")
        await stream.close()
        await until(lambda: b.held)
        assert await receive_exactly(b.held[0], 10) == b"last words"
        assert await b.held[0].receive_some(1) == b""

        cut = await a.transport.open_stream(b.peer_id, HOLD)
        await until(lambda: len(b.held) == 2)
        await a.transport.disconnect(b.peer_id)
        with pytest.raises(TransportError):
            await b.held[1].receive_some(1)
        with pytest.raises(TransportError):
            await cut.send_all(b"x")
        await cut.close()
        await b.held[1].close()
        with pytest.raises(TransportError, match="closed"):
            await cut.receive_some(1)


async def test_a_broadcast_reaches_all_also_through_the_middle() -> None:
    a, b, c = Node(), Node(), Node()
    async with running(a, b, c):
        await a.transport.dial(b.address)
        await c.transport.dial(b.address)
        await delivered(a, c, b"through the middle")
        assert (b.peer_id, b"through the middle") in c.messages
        assert (a.peer_id, b"through the middle") in b.messages
        assert a.messages == []


async def test_an_invalid_broadcast_is_not_passed_on() -> None:
    a, b, c = Node(), Node(), Node()
    async with running(a, b, c):
        await a.transport.dial(b.address)
        await c.transport.dial(b.address)
        await delivered(a, c, b"warm-up")
        await a.transport.publish(b"invalid")
        await delivered(a, c, b"after it")
        assert (a.peer_id, b"invalid") in b.messages
        assert b"invalid" not in [data for _, data in c.messages]


async def test_a_repeated_broadcast_is_delivered_again() -> None:
    a, b = Node(), Node()
    async with running(a, b):
        await a.transport.dial(b.address)
        await delivered(a, b, b"again")
        before = len(b.messages)
        await a.transport.publish(b"again")
        await until(lambda: len(b.messages) > before)


async def test_swarms_do_not_hear_each_other() -> None:
    a, b, stranger = Node(swarm="one"), Node(swarm="one"), Node(swarm="two")
    async with running(a, b, stranger):
        await a.transport.dial(b.address)
        await a.transport.dial(stranger.address)
        await delivered(a, b, b"hello")
        assert stranger.messages == []


async def test_a_stock_libp2p_peer_takes_part() -> None:
    a = Node()
    async with running(a), stock() as (host, _):
        pubsub = Pubsub(host, GossipSub([PROTOCOL_ID_V11], 6, 4, 12, heartbeat_interval=1))
        async with background_trio_service(pubsub.router), background_trio_service(pubsub):
            heard = await pubsub.subscribe("/p2ptrain/1/p2ptrain")
            await host.connect(info_from_p2p_addr(Multiaddr(a.address)))
            with trio.fail_after(PATIENCE_S):
                while b"from stock" not in [data for _, data in a.messages]:
                    await pubsub.publish("/p2ptrain/1/p2ptrain", b"from stock")
                    await trio.sleep(0.1)
                await a.transport.publish(b"from us")
                while (await heard.get()).data != b"from us":
                    pass
            stream = await host.new_stream(ID.from_string(a.peer_id), [ECHO])
            await stream.write(b"hello")
            assert await stream.read(5) == b"hello"
            await stream.reset()


async def test_a_protocol_that_the_peer_does_not_have() -> None:
    a, b = Node(), Node()
    async with running(a, b):
        await a.transport.dial(b.address)
        with pytest.raises(TransportError, match="does not speak"):
            await a.transport.open_stream(b.peer_id, "/other/1")


async def test_a_node_listens_where_it_did_last_if_nobody_else_does(tmp_path: Path) -> None:
    ports_file = tmp_path / "ports"
    addresses = []
    for _ in range(2):
        one = Node(seed=b"a" * 32, ports_file=ports_file)
        async with running(one):
            addresses.append(one.address)
    assert addresses[0] == addresses[1]
    first, copy = Node(seed=b"a" * 32, ports_file=ports_file), Node(seed=b"b" * 32, ports_file=ports_file)
    async with running(first), running(copy):
        assert first.address == addresses[0]
        assert port_of(copy.address) not in (0, port_of(first.address)), "a port that is taken is no error"
    given = Node(seed=b"a" * 32, ports_file=ports_file, listen=(f"/ip4/127.0.0.1/tcp/{port_of(addresses[0])}",))
    async with running(given):
        assert given.address == addresses[0]


def port_of(address: str) -> int:
    return int(address.split("/")[4])
