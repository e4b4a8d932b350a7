"""Data connections between real nodes: made either way round, used again, refused cleanly, and gone with the peer."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from libp2p_harness import (
    BOOM,
    ECHO,
    HOLD,
    PATIENCE_S,
    Choosy,
    Node,
    assert_serves,
    receive_exactly,
    running,
    until,
)

from gossip.transport.base import Stream, TransportError
from gossip.transport.connection_limits import ConnectionBounds
from gossip.transport.libp2p import data_channels
from gossip.transport.libp2p.data_channels import DIAL_ME, EXPECT_ME, MAX_OF_PEER, REFUSED
from gossip.transport.libp2p.data_link import (
    MAGIC,
    SECRET_BYTES,
    TOKEN_BYTES,
    DataLink,
    DataStream,
    RecordKind,
    keys_of,
)
from gossip.transport.libp2p.libp2p_stream import Libp2pStream
from gossip.transport.libp2p.noise_records import Records
from gossip.transport.wire_bytes import WireBytes


class Strict(Node):
    """Keeps nobody: all others are strangers to it."""

    def keeps(self, peer: Any) -> bool:
        return False


@asynccontextmanager
async def met(a: Node, b: Node) -> AsyncIterator[None]:
    """Both run, and `a` has dialled `b`."""
    async with running(a, b):
        await a.transport.dial(b.address)
        await until(lambda: a.peer_id in b.transport.peers)
        yield


async def echoed(one: Node, other: Node, size: int = 300_000) -> Stream:
    """Bulk there and back; the stream, closed at this end."""
    stream = await one.transport.open_stream(other.peer_id, ECHO, bulk=True)
    data = os.urandom(size)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stream.send_all, data)
        assert await receive_exactly(stream, size) == data
    await stream.close()
    return stream


def idle(node: Node) -> int:
    return sum(map(len, node.transport._channels._idle.values()))


def held(node: Node) -> int:
    return len(node.transport._channels._links)


@pytest.mark.parametrize("turned", [False, True])
async def test_either_end_opens_one_and_uses_it_again(turned: bool) -> None:
    a, b = Node(), Node()
    async with met(a, b):
        one, other = (b, a) if turned else (a, b)
        for _ in range(3):
            assert isinstance(await echoed(one, other), DataStream)
            await until(lambda: idle(one) == 1)
        assert (held(one), held(other)) == (1, 1)
        assert isinstance(await echoed(one, other, size=5_000_000), DataStream)
        plain = await one.transport.open_stream(other.peer_id, ECHO)
        assert isinstance(plain, Libp2pStream)
        await plain.close()
        assert not a.transport.faults
        assert not b.transport.faults


@pytest.mark.parametrize("turned", [False, True])
async def test_who_has_none_is_served_over_libp2p_and_not_asked_again(turned: bool) -> None:
    a, b = (Node(data_connections=turned), Node(data_connections=not turned))
    async with met(a, b):
        one, other = (a, b) if turned else (b, a)
        for _ in range(3):
            assert isinstance(await echoed(one, other), Libp2pStream)
        assert one.transport.drops["data_open"] == 1
        assert held(one) == held(other) == 0


async def test_who_does_not_know_the_protocol_is_served_over_libp2p(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = Node(), Node()
    monkeypatch.setattr(data_channels, "PROTOCOL", "/elsewhere/1/data")
    async with met(a, b):
        assert isinstance(await echoed(a, b), Libp2pStream)
        assert a.transport.drops["data_open"] == 1


async def test_strangers_get_none() -> None:
    a, b = Node(), Strict()
    async with met(a, b):
        assert isinstance(await echoed(a, b), Libp2pStream)
        assert isinstance(await echoed(b, a), DataStream)  # whom it keeps is a's own matter


async def test_who_is_kept_no_longer_opens_nothing_over_the_one_it_has() -> None:
    a, b = Node(), Choosy()
    async with met(a, b):
        b.kept = frozenset({a.peer_id})
        for _ in range(2):
            assert isinstance(await echoed(a, b), DataStream)
            await until(lambda: idle(a) == 1)
        b.kept = frozenset()
        stream = await a.transport.open_stream(b.peer_id, ECHO, bulk=True)
        with trio.fail_after(PATIENCE_S), pytest.raises(TransportError):
            await stream.receive_some(1)
        await stream.reset()
        await until(lambda: held(a) == held(b) == 0)
        assert isinstance(await echoed(a, b), Libp2pStream)


async def test_a_peer_gets_no_more_than_its_share_and_the_rest_goes_over_libp2p() -> None:
    a, b = Node(), Node()
    async with met(a, b):
        streams = [await a.transport.open_stream(b.peer_id, HOLD, bulk=True) for _ in range(MAX_OF_PEER + 2)]
        assert [type(stream) for stream in streams] == [DataStream] * MAX_OF_PEER + [Libp2pStream] * 2
        b.release.set()
        for stream in streams:
            await stream.reset()
        await until(lambda: held(b) == 0)
        a.transport._channels._without.clear()
        assert isinstance(await echoed(a, b), DataStream)


@pytest.mark.parametrize("ends", ["disconnect", "stop"])
async def test_it_goes_with_the_peer(ends: str) -> None:
    a, b = Node(), Node()
    async with met(a, b):
        await echoed(a, b)
        stream = await a.transport.open_stream(b.peer_id, HOLD, bulk=True)
        assert isinstance(stream, DataStream)
        await stream.send_all(b"x")
        if ends == "disconnect":
            await b.transport.disconnect(a.peer_id)
        else:
            a.transport._channels.close()
        with trio.fail_after(PATIENCE_S), pytest.raises(TransportError):
            await stream.receive_some(1)
        b.release.set()
        await until(lambda: held(a) == held(b) == 0)
        if ends == "disconnect":
            await a.transport.dial(b.address)
            await until(lambda: a.peer_id in b.transport.peers)
        assert isinstance(await echoed(a, b), DataStream)


async def test_a_reset_or_a_handler_that_raises_costs_that_connection_alone() -> None:
    a, b = Node(), Node()
    async with met(a, b):
        other = await a.transport.open_stream(b.peer_id, HOLD, bulk=True)
        broken = await a.transport.open_stream(b.peer_id, BOOM, bulk=True)
        with pytest.raises(TransportError):
            await broken.receive_some(1)
        await broken.close()
        dropped = await a.transport.open_stream(b.peer_id, ECHO, bulk=True)
        await dropped.send_all(b"x")
        await dropped.reset()
        b.release.set()
        await other.send_all(b"goes on")
        assert await receive_exactly(other, 7) == b"goes on"
        assert isinstance(await echoed(a, b), DataStream)
        await until(lambda: b.transport.drops["handler"] >= 1)


async def test_one_that_the_far_end_let_go_of_is_not_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = Node(), Node()
    async with met(a, b):
        await echoed(a, b)
        await until(lambda: idle(a) == 1)
        b.transport._channels.close()
        (link,) = a.transport._channels._links
        await until(lambda: not link.quiet)
        assert isinstance(await echoed(a, b), DataStream)
        await until(lambda: idle(a) == 1)
        monkeypatch.setattr(data_channels, "IDLE_S", 0.0)
        old = set(a.transport._channels._links)
        assert isinstance(await echoed(a, b), DataStream)
        assert old.isdisjoint(a.transport._channels._links)


@pytest.mark.parametrize("ask", [bytes([EXPECT_ME]), bytes([DIAL_ME]), b"\x00", b"\xff"])
@pytest.mark.parametrize("turned", [False, True])
async def test_nobody_is_made_to_dial_what_it_has_not_dialled(ask: bytes, turned: bool) -> None:
    a, b = Node(), Node()
    async with met(a, b):
        one, other = (b, a) if turned else (a, b)
        stream = await one.transport.open_stream(other.peer_id, data_channels.PROTOCOL)
        await stream.send_all(ask + bytes(TOKEN_BYTES + SECRET_BYTES))
        granted = await stream.receive_some(1) != REFUSED
        assert granted == (ask == bytes([DIAL_ME if turned else EXPECT_ME]))
        await stream.reset()
    await until(lambda: not b.transport._channels._expected)


async def test_strangers_at_the_port_are_turned_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_channels, "OPEN_S", 1.0)
    victim = Node(bounds=ConnectionBounds(handshake_s=1.0))
    async with running(victim):
        port = int(victim.address.split("/")[4])
        for said in (
            MAGIC + os.urandom(TOKEN_BYTES),
            MAGIC[:1] + os.urandom(200),
            MAGIC + bytes(3),  # and nothing more
            MAGIC[:1],
            b"",
        ):
            async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
                await stream.send_all(said)
                with trio.fail_after(PATIENCE_S):
                    try:
                        assert await stream.receive_some(1) == b""
                    except trio.BrokenResourceError:
                        continue
        await until(lambda: victim.transport.drops["data_token"] >= 2 and held(victim) == 0)
        await assert_serves(victim, topic_too=False)


async def test_whoever_took_a_token_and_not_the_secret_gets_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_channels, "OPEN_S", 1.0)
    a, b = Node(), Node()
    async with met(a, b):
        stream = await a.transport.open_stream(b.peer_id, data_channels.PROTOCOL)
        token = os.urandom(TOKEN_BYTES)
        await stream.send_all(bytes([EXPECT_ME]) + token + os.urandom(SECRET_BYTES))
        assert await stream.receive_some(1) == data_channels.GRANTED
        async with await trio.open_tcp_stream("127.0.0.1", int(b.address.split("/")[4])) as thief:
            await thief.send_all(MAGIC + token + bytes(20))
            with trio.fail_after(PATIENCE_S):
                try:
                    while await thief.receive_some(100):
                        pass
                except trio.BrokenResourceError:
                    pass
        await until(lambda: held(b) == 0)
        assert isinstance(await echoed(a, b), DataStream)


@pytest.mark.parametrize("kind", [RecordKind.OPEN, RecordKind.DATA, RecordKind.END])
async def test_nothing_comes_before_the_greeting(kind: RecordKind) -> None:
    a, b = Node(), Node()
    async with met(a, b):
        stream = await a.transport.open_stream(b.peer_id, data_channels.PROTOCOL)
        token, secret = os.urandom(TOKEN_BYTES), os.urandom(SECRET_BYTES)
        await stream.send_all(bytes([EXPECT_ME]) + token + secret)
        assert await stream.receive_some(1) == data_channels.GRANTED
        async with await trio.open_tcp_stream("127.0.0.1", int(b.address.split("/")[4])) as socket:
            await socket.send_all(MAGIC + token)
            send_key, receive_key = keys_of(secret, a.peer_id, b.peer_id)
            link = DataLink(socket, b"", send_key=send_key, receive_key=receive_key, wire=WireBytes())
            await link.send(kind, b"" if kind is RecordKind.END else ECHO.encode())
            await until(lambda: b.transport.drops["handshake"] == 1 and held(b) == 0)


async def test_one_that_asks_and_says_nothing_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_channels, "OPEN_S", 0.2)
    a, b = Node(), Node()
    async with met(a, b):
        stream = await a.transport.open_stream(b.peer_id, data_channels.PROTOCOL)
        await stream.send_all(bytes([EXPECT_ME]))
        with trio.fail_after(PATIENCE_S), pytest.raises(TransportError):
            await stream.receive_some(1)
        await until(lambda: b.transport.drops["data_open"] == 1)


@pytest.mark.parametrize("late", [False, True])
async def test_one_that_comes_without_an_answer_is_closed(late: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked to dial, and does, and never says so; its greeting is in time, or after we have given up."""
    monkeypatch.setattr(data_channels, "OPEN_S", 0.5)
    a, b = Node(), Node()
    given_up, ended = trio.Event(), trio.Event()

    async def silent(anchor: Stream, way: Any) -> None:
        ask = await receive_exactly(anchor, 1 + TOKEN_BYTES + SECRET_BYTES)
        token, secret = ask[1 : 1 + TOKEN_BYTES], ask[1 + TOKEN_BYTES :]
        async with await trio.open_tcp_stream(*way.dialled) as socket:
            await socket.send_all(MAGIC + token)
            send_key, receive_key = keys_of(secret, a.peer_id, b.peer_id)
            link = DataLink(socket, b"", send_key=send_key, receive_key=receive_key, wire=WireBytes())
            if late:
                assert await link.receive() == (RecordKind.HELLO, b"")
                await given_up.wait()
            await link.send(RecordKind.HELLO)
            try:
                while await link.receive() is not None:
                    pass
            finally:
                ended.set()

    monkeypatch.setattr(a.transport._channels, "serve", silent)
    async with met(a, b):
        stream = await b.transport.open_stream(a.peer_id, ECHO, bulk=True)
        assert isinstance(stream, Libp2pStream)
        await stream.close()
        given_up.set()
        with trio.fail_after(PATIENCE_S):
            await ended.wait()
        await until(lambda: held(b) == 0)


def more_than_kernels_hold() -> int:
    """Bytes that do not fit into the largest buffers of two connections' ends, in whole millions. They differ from
    machine to machine, and grow with what is read quickly."""
    most = [
        int(Path(f"/proc/sys/net/ipv4/tcp_{way}mem").read_text().split()[-1])
        for way in "rw"
        if Path(f"/proc/sys/net/ipv4/tcp_{way}mem").exists()
    ]
    return 1_000_000 * (max(30_000_000, 2 * sum(most)) // 1_000_000 + 5)


async def test_a_reader_that_pauses_holds_the_writer_and_loses_nothing() -> None:
    a, b = Node(), Node()
    size = more_than_kernels_hold()
    async with met(a, b):
        stream = await a.transport.open_stream(b.peer_id, ECHO, bulk=True)
        sent: list[int] = []

        async def send() -> None:
            for _ in range(size // 1_000_000):
                await stream.send_all(bytes(1_000_000))
                sent.append(1_000_000)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            before = -1
            while sum(sent) != before:
                before = sum(sent)
                await trio.sleep(0.5)
            assert sum(sent) < size  # the kernel's buffers are full, and nobody else holds it
            assert await receive_exactly(stream, size) == bytes(size)
        await stream.close()


@pytest.mark.parametrize("turned", [False, True])
async def test_a_connection_without_an_address_carries_the_bulk_itself(
    turned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A circuit through a relay, say: there is nothing that could be dialled, and nothing is left behind."""

    def none(records: Records) -> tuple[str, int]:
        raise OSError("a circuit has no address of its own")

    monkeypatch.setattr(Records, "peer_name", property(none))
    a, b = Node(), Node()
    async with met(a, b):
        one, other = (b, a) if turned else (a, b)
        assert isinstance(await echoed(one, other), Libp2pStream)
        assert one.transport.drops["data_open"] == 1
        await until(lambda: held(one) == held(other) == 0)
        await until(lambda: not (a.transport._channels._expected or b.transport._channels._expected))
