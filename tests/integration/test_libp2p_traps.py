"""libp2p 0.8.1's traps: each reproduced on the stock library, and the same attack survived by ours.

When a test of the first kind fails, the library has changed: read what, and whether the defence can go.
"""

from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import libp2p.stream_muxer.yamux.yamux as yamux_module
import pytest
import trio
import trio.testing
from google.protobuf.message import DecodeError
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.io.exceptions import IOException
from libp2p.io.trio import TrioTCPStream
from libp2p.network.config import ConnectionConfig
from libp2p.network.connection.exceptions import RawConnError
from libp2p.network.swarm import Swarm
from libp2p.peer.id import ID
from libp2p.pubsub.gossipsub import PROTOCOL_ID_V11, GossipSub
from libp2p.pubsub.pb import rpc_pb2
from libp2p.pubsub.pubsub import Pubsub
from libp2p.security.insecure.transport import PLAINTEXT_PROTOCOL_ID, InsecureTransport
from libp2p.security.tls.transport import PROTOCOL_ID as TLS_ID
from libp2p.security.tls.transport import TLSTransport
from libp2p.stream_muxer.exceptions import MuxedStreamError
from libp2p.stream_muxer.mplex.mplex import MPLEX_PROTOCOL_ID, Mplex
from libp2p.tools.anyio_service import background_trio_service
from libp2p.transport.exceptions import MuxerUpgradeFailure, SecurityUpgradeFailure
from libp2p_harness import (
    BOOM,
    ECHO,
    HOLD,
    PATIENCE_S,
    Attacker,
    Node,
    assert_serves,
    attacking,
    delimited,
    receive_exactly,
    running,
    stock,
    until,
    upgraded,
    upgrader_with,
)
from multiaddr import Multiaddr

from gossip.core.errors import LocalError
from gossip.transport.base import PING_BYTES, PING_PROTOCOL, TransportError
from gossip.transport.connection_limits import ConnectionBounds
from gossip.transport.libp2p.tcp import BufferedTcpStream
from gossip.transport.wire_bytes import WireBytes

TOPIC = "/p2ptrain/1/p2ptrain"
MESHSUB = str(PROTOCOL_ID_V11)

Attack = Callable[[Attacker], Awaitable[None]]


async def non_utf8_protocol(attacker: Attacker) -> None:
    stream = await attacker.raw_stream()
    await stream.write(delimited(b"/multistream/1.0.0\n") + delimited(b"\xff\xfe\xfd\n"))


async def malformed_pubsub(attacker: Attacker) -> None:
    stream = await attacker.stream(MESHSUB)
    await stream.write(delimited(b"\xff" * 20))


async def garbage_public_key(attacker: Attacker) -> None:
    author = b"\x12\x20" + bytes(32)  # a SHA-256 multihash: holds no key, so the message's own is parsed
    message = rpc_pb2.Message(
        data=b"x", topicIDs=[TOPIC], from_id=author, seqno=b"1", key=b"\x08\x01\x12\x02xx", signature=b"s"
    )
    rpc = rpc_pb2.RPC(publish=[message]).SerializeToString()
    stream = await attacker.stream(MESHSUB)
    await stream.write(delimited(rpc))


@asynccontextmanager
async def stock_pubsub(host: Any) -> Any:
    pubsub = Pubsub(host, GossipSub([PROTOCOL_ID_V11], 6, 4, 12))
    async with background_trio_service(pubsub.router), background_trio_service(pubsub):
        await pubsub.subscribe(TOPIC)
        yield pubsub


async def open_boom(attacker: Attacker) -> None:
    await attacker.stream(BOOM)


async def until_the_host_ends(attack: Attack) -> None:
    """Attack a stock host with gossipsub, and raise what ends it."""

    async def boom(stream: Any) -> None:
        raise ZeroDivisionError

    with trio.fail_after(PATIENCE_S):
        async with stock() as (host, address), stock_pubsub(host), attacking(address) as attacker:
            host.set_stream_handler(BOOM, boom)
            await attack(attacker)
            await host.get_network().manager.wait_finished()


async def until_pubsub_ends(attack: Attack) -> None:
    """The same for the pubsub service."""
    with trio.fail_after(PATIENCE_S):
        async with stock() as (host, address), stock_pubsub(host) as pubsub, attacking(address) as attacker:
            await attack(attacker)
            await pubsub.manager.wait_finished()


@pytest.mark.parametrize(
    ("attack", "ends_with"),
    [(non_utf8_protocol, UnicodeDecodeError), (malformed_pubsub, DecodeError), (open_boom, ZeroDivisionError)],
)
async def test_trap_1_one_stream_ends_a_stock_host(attack: Attack, ends_with: type[Exception]) -> None:
    with pytest.raises(BaseExceptionGroup) as caught:
        await until_the_host_ends(attack)
    assert caught.group_contains(ends_with)


async def test_trap_2_a_garbage_public_key_ends_stock_pubsub() -> None:
    with pytest.raises(BaseExceptionGroup) as caught:
        await until_pubsub_ends(garbage_public_key)
    assert not caught.group_contains(trio.TooSlowError)


@pytest.mark.parametrize(
    ("attack", "kind"),
    [(non_utf8_protocol, "stream"), (malformed_pubsub, "stream"), (garbage_public_key, "pubsub_message")],
)
async def test_traps_1_and_2_are_survived_and_counted(attack: Attack, kind: str) -> None:
    victim = Node()
    async with running(victim), attacking(victim.address) as attacker:
        await attack(attacker)
        await until(lambda: victim.transport.faults.get(kind))
        await assert_serves(victim)
        assert await echoes(attacker)  # the other streams of the same connection live on


async def echoes(attacker: Attacker) -> bool:
    stream = await attacker.stream(ECHO)
    await stream.write(b"ping")
    with trio.fail_after(PATIENCE_S):
        return bool(await stream.read(4) == b"ping")


async def test_trap_1_an_exception_in_our_handlers_resets_that_stream_alone() -> None:
    a, b = Node(), Node()
    async with running(a, b):
        await a.transport.dial(b.address)
        stream = await a.transport.open_stream(b.peer_id, BOOM)
        with pytest.raises(TransportError):
            await receive_exactly(stream, 1)
        await a.transport.publish(b"boom")
        assert await a.echo(b.peer_id) == b"hello"
        await until(lambda: b.transport.faults.get("handler"))
        await assert_serves(b)


GARBAGE = {
    "bytes": b"\x00\xff" * 2000,
    "http": b"GET / HTTP/1.1\r\n\r\n",
    "multistream then garbage": delimited(b"/multistream/1.0.0\n") + delimited(b"/noise\n") + b"\xff" * 500,
    "endless length": b"\xff" * 64,
    "nothing": b"",
}


async def test_garbage_instead_of_a_handshake_is_survived() -> None:
    victim = Node()
    async with running(victim):
        parts = Multiaddr(victim.address)
        for garbage in GARBAGE.values():
            stream = await trio.open_tcp_stream("127.0.0.1", int(parts.value_for_protocol("tcp")))
            await stream.send_all(garbage)
            await stream.aclose()
        await until(lambda: victim.transport.faults.get("handshake") == len(GARBAGE))
        await assert_serves(victim)


async def test_garbage_after_the_handshake_is_survived() -> None:
    victim = Node()
    async with running(victim):
        for garbage in (b"\xff" * 100, b"\x00\x00\x00\x01" + b"\xff" * 8, bytes(12)):
            async with attacking(victim.address) as attacker:
                await attacker.muxed.secured_conn.write(garbage)
                await trio.sleep(0.05)
        async with attacking(victim.address) as attacker:
            await attacker.raw.write(b"\x00\x20" + b"\xff" * 32)  # not what the key would make
            await trio.sleep(0.05)
        await assert_serves(victim)


async def test_trap_3_a_stock_host_counts_inbound_connections_for_ever() -> None:
    config = ConnectionConfig(max_connections=6, high_watermark=6, low_watermark=3, min_connections=3)
    async with stock(connection_config=config) as (_, address):  # by default 300 less 50: the 251st
        for _ in range(3):
            async with attacking(address):
                pass
        await trio.sleep(0.5)  # all three are gone, yet
        with pytest.raises(SecurityUpgradeFailure):
            await upgraded(address, upgrader_with())


@pytest.mark.thorough
async def test_trap_3_three_hundred_connections_one_after_another_are_served() -> None:
    victim = Node()
    async with running(victim):
        for number in range(300):
            _, raw = await upgraded(victim.address, upgrader_with())
            await until(lambda count=number + 1: [up for up, _ in victim.log].count("up") == count)
            await raw.close()
        await until(lambda: [up for up, _ in victim.log].count("lost") == 300)
        await until(lambda: not victim.transport.peers)
        await assert_serves(victim, topic_too=False)


async def test_connections_are_bounded_in_all_and_a_peer() -> None:
    victim = Node(bounds=ConnectionBounds(inbound=3, of_peer=2))
    async with running(victim):
        same = upgrader_with()
        raws = [(await upgraded(victim.address, same))[1] for _ in range(2)]
        await until(lambda: len(victim.transport.peers) == 1)
        raws.append((await upgraded(victim.address, same))[1])
        await until(lambda: victim.transport.faults.get("too_many_connections_of_peer") == 1)
        await until(lambda: inbound(victim) == 2)  # until the refused one is closed, it counts
        raws.append((await upgraded(victim.address, upgrader_with()))[1])
        await until(lambda: inbound(victim) == 3)
        assert len(victim.transport.peers) == 2
        with pytest.raises(SecurityUpgradeFailure):
            await upgraded(victim.address, upgrader_with())
        await until(lambda: victim.transport.faults["too_many_connections"] == 1)
        for raw in raws:
            await raw.close()
        await until(lambda: not victim.transport.peers)
        await assert_serves(victim, topic_too=False)


@pytest.mark.parametrize("ends", ["dialled", "listening"])
async def test_trap_23_a_connection_whose_close_is_cut_short_is_forgotten_and_its_peer_dialled_again(ends: str) -> None:
    one, other = Node(), Node()
    async with running(one, other):
        await one.transport.dial(other.address)
        await until(lambda: other.transport.peers)
        cutter, cut = (one, other) if ends == "dialled" else (other, one)
        (connection,) = cutter.transport._swarm.get_connections()
        async with connection.muxed_conn.streams_lock:  # closing waits for it, longer than it may take
            await cutter.transport.disconnect(cut.transport.peer_id)
        await until(lambda: not one.transport.peers and not other.transport.peers)
        await one.transport.dial(other.address)
        await until(lambda: other.transport.peers)


async def test_trap_23_a_connection_that_ends_as_it_is_added_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    stock = Swarm.add_conn

    async def ended(swarm: Any, muxed: Any, direction: str = "unknown") -> Any:
        connection = await stock(swarm, muxed, direction)
        await muxed.close()
        await connection.event_closed.wait()
        swarm.connections[muxed.peer_id] = [connection]  # as where it ends between two steps of stock code
        return connection

    one, other = Node(), Node()
    async with running(one, other):
        monkeypatch.setattr(Swarm, "add_conn", ended)
        await one.transport.dial(other.address)
        assert not one.transport.peers
        monkeypatch.setattr(Swarm, "add_conn", stock)
        await until(lambda: not other.transport.peers)
        await one.transport.dial(other.address)
        await until(lambda: one.transport.peers and other.transport.peers)
        assert not sum(other.transport.drops.values())


def inbound(node: Node) -> int:
    """How many places of callers are taken."""
    return len(node.transport._swarm._inbound)


class QuickTrio:
    """trio with the clock of `move_on_after` ten times as fast, for yamux's module alone."""

    def __getattr__(self, name: str) -> Any:
        return getattr(trio, name)

    def move_on_after(self, seconds: float) -> trio.CancelScope:
        return trio.move_on_after(seconds / 10)


async def test_trap_4_a_stock_writer_dies_of_a_reader_that_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yamux_module, "trio", QuickTrio())

    async def pause(stream: Any) -> None:
        await trio.sleep_forever()

    async with stock() as (host, address), attacking(address) as writer:
        host.set_stream_handler(HOLD, pause)
        stream = await writer.stream(HOLD)
        with pytest.raises(MuxedStreamError, match="window update after 5 seconds"):
            await stream.write(bytes(20 << 20))  # the window has grown to 16 MiB while the protocol was agreed on


@pytest.mark.thorough
async def test_trap_4_a_reader_that_pauses_six_seconds_loses_nothing() -> None:
    a, b = Node(), Node()
    data = bytes(range(256)) * (1 << 14)  # 4 MiB, sixteen windows
    async with running(a, b):
        await a.transport.dial(b.address)
        stream = await a.transport.open_stream(b.peer_id, HOLD)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream.send_all, data)
            await trio.sleep(6)
            b.release.set()
            assert await receive_exactly(stream, len(data)) == data


async def test_a_reader_that_never_reads_is_given_up_after_stall_s() -> None:
    a, b = Node(stall_s=0.3), Node()
    async with running(a, b):
        await a.transport.dial(b.address)
        stream = await a.transport.open_stream(b.peer_id, HOLD)
        with trio.fail_after(PATIENCE_S), pytest.raises(TransportError):  # by default it is two minutes
            await stream.send_all(bytes(1 << 20))
        assert await a.echo(b.peer_id) == b"hello"


async def test_trap_9_a_stock_host_talks_plain_text() -> None:
    async with stock() as (_, address):
        muxed, raw = await upgraded(address, upgrader_with({PLAINTEXT_PROTOCOL_ID: plaintext()}))
        assert muxed.peer_id == ID.from_string(str(Multiaddr(address).get_peer_id()))
        await raw.close()


def plaintext() -> InsecureTransport:
    return InsecureTransport(create_new_key_pair())


@pytest.mark.parametrize("security", ["plaintext", "tls"])
async def test_trap_9_only_noise_is_spoken(security: str) -> None:
    offers = {"plaintext": {PLAINTEXT_PROTOCOL_ID: plaintext()}, "tls": {TLS_ID: TLSTransport(create_new_key_pair())}}
    victim = Node()
    async with running(victim):
        with pytest.raises(SecurityUpgradeFailure):
            await upgraded(victim.address, upgrader_with(offers[security]))
        with pytest.raises(MuxerUpgradeFailure):
            await upgraded(victim.address, upgrader_with(muxers={MPLEX_PROTOCOL_ID: Mplex}))
        assert victim.transport.peers == frozenset()


async def test_trap_15_two_stock_hosts_share_a_port() -> None:
    async with stock() as (_, address):
        taken = Multiaddr(address.partition("/p2p/")[0])
        async with stock() as (other, _):
            assert await other.get_network().listen(taken)


async def test_trap_15_a_port_in_use_is_refused_by_name() -> None:
    first = Node()
    async with running(first):
        address = first.address.partition("/p2p/")[0]
        port = address.rpartition("/")[2]
        second = Node(listen=(address,))
        with pytest.raises(LocalError, match=f"port {port} .* in use"):
            await second.transport.run(second)
        async with stock() as (other, _):
            assert not await other.get_network().listen(Multiaddr(address))
        await assert_serves(first, topic_too=False)
    async with running(Node(listen=(address,))):
        pass  # and free again at once


STREAMS = 50


async def until_its_end(stream: Any) -> None:
    with suppress(Exception):  # its end, whatever form that has
        while await stream.read(10):
            pass


async def test_trap_21_stock_yamux_keeps_an_event_of_every_stream_whose_reader_the_end_wakes() -> None:
    async def end_with_the_other(stream: Any) -> None:
        await until_its_end(stream)
        await stream.close()

    async with stock() as (host, address), attacking(address) as attacker:
        host.set_stream_handler(ECHO, end_with_the_other)
        for _ in range(STREAMS):
            stream = await attacker.stream(ECHO)
            await stream.close()
            with trio.fail_after(PATIENCE_S):
                await until_its_end(stream)
        assert len(attacker.muxed.stream_events.keys() - attacker.muxed.streams.keys()) > STREAMS / 2


async def test_trap_21_ours_keeps_nothing_of_streams_that_have_ended() -> None:
    a, b = Node(), Node()
    async with running(a, b):
        await a.transport.dial(b.address)
        for _ in range(STREAMS):
            assert await a.echo(b.peer_id) == b"hello"
        for node in (a, b):
            (connection,) = node.transport._swarm.get_connections()
            muxed = connection.muxed_conn
            await until(lambda held=muxed.streams: len(held) < STREAMS / 5)
            assert muxed.stream_events.keys() <= muxed.streams.keys()
            assert muxed.stream_buffers.keys() <= muxed.streams.keys()


async def test_trap_22_a_stock_reader_sleeps_on_when_its_own_end_resets_the_stream() -> None:
    victim = Node()
    async with running(victim), attacking(victim.address) as attacker, trio.open_nursery() as nursery:
        stream = await attacker.stream(HOLD)
        nursery.start_soon(until_its_end, stream)
        await trio.testing.wait_all_tasks_blocked()
        await stream.reset()
        await trio.sleep(1)
        assert nursery.child_tasks, "the reader was woken"
        nursery.cancel_scope.cancel()


async def test_trap_22_our_reader_is_woken_when_its_own_end_resets_the_stream() -> None:
    a, b = Node(), Node()
    async with running(a, b), trio.open_nursery() as nursery:
        await a.transport.dial(b.address)
        stream = await a.transport.open_stream(b.peer_id, HOLD)

        async def read() -> None:
            with pytest.raises(TransportError):
                await stream.receive_some(1)

        nursery.start_soon(read)
        await trio.testing.wait_all_tasks_blocked()
        await stream.reset()
        await until(lambda: not nursery.child_tasks)


async def test_trap_24_stock_code_knows_no_address_of_a_far_end_by_ipv6() -> None:
    listener = (await trio.open_tcp_listeners(0, host="::1"))[0]
    near = await trio.open_tcp_stream("::1", listener.socket.getsockname()[1])
    async with listener, near, await listener.accept() as far:
        assert TrioTCPStream(far).get_remote_address() is None
        assert BufferedTcpStream(far, WireBytes()).get_remote_address() == near.socket.getsockname()[:2]


async def test_trap_25_a_stock_host_keeps_an_entry_of_every_peer_that_pinged() -> None:
    async with stock() as (host, address):
        for _ in range(3):
            async with attacking(address) as attacker:
                await answered(await attacker.stream(PING_PROTOCOL))
        await until(lambda: not host.get_network().connections)
        service = host.multiselect.handlers[PING_PROTOCOL].__self__
        assert len(service._inbound_streams) == 3


async def test_trap_25_ours_keeps_nothing_of_who_has_pinged() -> None:
    victim = Node()
    async with running(victim):
        for _ in range(3):
            async with attacking(victim.address) as attacker:
                await answered(await attacker.stream(PING_PROTOCOL))
        await until(lambda: not victim.transport.peers)
        answers = victim.transport._host.multiselect.handlers[PING_PROTOCOL].__self__
        await until(lambda: not answers._streams)


async def answered(stream: Any) -> None:
    await stream.write(bytes(PING_BYTES))
    with trio.fail_after(PATIENCE_S):
        assert await stream.read(PING_BYTES) == bytes(PING_BYTES)


async def test_a_peer_that_overruns_its_window_is_cut_off() -> None:
    victim = Node()
    async with running(victim), attacking(victim.address) as attacker:
        stream = await attacker.stream(HOLD)
        stream.send_window = 1 << 30
        with suppress(MuxedStreamError, IOException, RawConnError):
            await stream.write(bytes(8 << 20))
        await until(lambda: victim.transport.faults.get("window_overrun"))
        await until(lambda: not victim.transport.peers)
        await assert_serves(victim, topic_too=False)


async def test_a_peer_that_opens_too_many_streams_has_them_reset() -> None:
    victim = Node()
    async with running(victim), attacking(victim.address) as attacker:
        for _ in range(200):
            await attacker.raw_stream()
        await until(lambda: victim.transport.faults.get("too_many_streams"))
        await assert_serves(victim, topic_too=False)
