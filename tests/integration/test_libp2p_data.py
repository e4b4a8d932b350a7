"""Records of a data connection: order, bounds, keys that fit one connection and direction, and every wrong byte."""

import socket
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import trio
import trio.testing
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given, settings
from hypothesis import strategies as st
from sizes import examples

from gossip.core.ids import PeerId
from gossip.transport.base import TransportError
from gossip.transport.libp2p import data_link
from gossip.transport.libp2p.data_link import MAX_RECORD_BYTES, MOST, DataLink, DataStream, RecordKind, keys_of
from gossip.transport.wire_bytes import WireBytes

ONE, OTHER = PeerId("one"), PeerId("other")
SECRET = bytes(range(32))


@contextmanager
def sockets() -> Iterator[tuple[trio.SocketStream, trio.SocketStream]]:
    here, there = socket.socketpair()
    with here, there:
        yield tuple(trio.SocketStream(trio.socket.from_stdlib_socket(each)) for each in (here, there))


@contextmanager
def linked(left: bytes = b"") -> Iterator[tuple[DataLink, DataLink]]:
    with sockets() as (here, there):
        send_key, receive_key = keys_of(SECRET, ONE, OTHER)
        yield (
            DataLink(here, b"", send_key=send_key, receive_key=receive_key, wire=WireBytes()),
            DataLink(there, left, send_key=receive_key, receive_key=send_key, wire=WireBytes()),
        )


def sealed(*records: tuple[int, bytes], key: bytes | None = None, first: int = 0) -> bytes:
    """Records as another implementation would write them, from the page alone."""
    cipher, wire = AESGCM(key or keys_of(SECRET, ONE, OTHER)[0]), b""
    for number, (kind, data) in enumerate(records, first):
        head = (kind << 24 | len(data)).to_bytes(4, "big")
        wire += head + cipher.encrypt(number.to_bytes(12, "big"), data, head)
    return wire


async def fed(wire: bytes) -> list[tuple[RecordKind, bytes]]:
    """All that a link makes of these bytes and the end of the connection behind them. Raises TransportError."""
    with linked(left=wire) as (sender, receiver):
        sender.abandon()
        found = []
        while (record := await receiver.receive()) is not None:
            found.append(record)
        return found


async def test_records_are_as_the_page_has_them() -> None:
    wire = sealed((0, b""), (1, b"/a/b"), (2, b"data"), (3, b""))
    assert await fed(wire) == [
        (RecordKind.HELLO, b""),
        (RecordKind.OPEN, b"/a/b"),
        (RecordKind.DATA, b"data"),
        (RecordKind.END, b""),
    ]
    with linked() as (sender, receiver):
        await sender.send(RecordKind.DATA, b"data")
        assert await receiver._socket.receive_some(99) == sealed((2, b"data"))


@settings(max_examples=examples(25), deadline=None)
@given(st.lists(st.integers(1, 3 * MAX_RECORD_BYTES) | st.integers(1, 50), max_size=5), st.integers(1, 1 << 21))
def test_bytes_come_back_whatever_the_pieces(sizes: list[int], most: int) -> None:
    async def exchange() -> None:
        with linked() as (one, other):
            sender, receiver = DataStream(one, OTHER), DataStream(other, ONE)
            pieces = [bytes([number]) * size for number, size in enumerate(sizes)]

            async def send() -> None:
                for piece in pieces:
                    await sender.send_all(piece)
                await sender.close()

            got = b""
            async with trio.open_nursery() as nursery:
                nursery.start_soon(send)
                while part := await receiver.receive_some(max(most, sum(sizes) // 50 + 1)):
                    got += part
            assert got == b"".join(pieces)
            await receiver.close()
            assert await sender.drain()
            assert not one.closed.is_set()

    trio.run(exchange)


async def test_what_was_read_with_the_preamble_comes_first() -> None:
    wire = sealed((2, b"first"), (2, b"second"))
    for cut in range(len(wire)):
        with linked(left=wire[:cut]) as (sender, receiver):
            await sender._socket.send_all(wire[cut:])
            assert [await receiver.receive(), await receiver.receive()] == [
                (RecordKind.DATA, b"first"),
                (RecordKind.DATA, b"second"),
            ]


async def test_every_truncation_but_between_records_is_a_fault() -> None:
    wire = sealed((2, b"first"), (3, b""))
    whole = len(sealed((2, b"first")))
    for cut in range(1, len(wire)):
        if cut == whole:
            assert await fed(wire[:cut]) == [(RecordKind.DATA, b"first")]
            continue
        with pytest.raises(TransportError):
            await fed(wire[:cut])


@pytest.mark.parametrize("bit", range(0, 8 * (4 + 5 + 16), 3))
async def test_every_flipped_bit_is_found(bit: int) -> None:
    wire = bytearray(sealed((2, b"first")))
    wire[bit // 8] ^= 1 << bit % 8
    with pytest.raises(TransportError):
        await fed(bytes(wire))


@settings(max_examples=examples(60), deadline=None)
@given(st.binary(max_size=80))
def test_no_bytes_break_it(wire: bytes) -> None:
    async def feed() -> None:
        try:
            assert await fed(wire) == [] == list(wire)
        except TransportError:
            return

    trio.run(feed)


async def test_records_of_another_key_direction_or_place_do_not_open() -> None:
    there, back = keys_of(SECRET, ONE, OTHER)
    others = {there, back, *keys_of(SECRET, OTHER, ONE), *keys_of(bytes(32), ONE, OTHER)}
    assert len(others) == 6
    for wire in (
        *(sealed((2, b"data"), key=key) for key in others - {there}),
        sealed((2, b"data"), first=1),  # one is missing
        sealed((2, b"data")) * 2,  # one is repeated
    ):
        with pytest.raises(TransportError, match="does not open"):
            await fed(wire)


@pytest.mark.parametrize(
    ("kind", "size"),
    [(4, 1), (255, 0), (0, 1), (3, 1), (1, 0), (1, 129), (2, 0), (2, MAX_RECORD_BYTES + 1), (2, (1 << 24) - 1)],
)
async def test_a_head_beyond_its_bounds_is_refused_before_there_is_room_made(kind: int, size: int) -> None:
    tracemalloc.start()
    with pytest.raises(TransportError, match="no kind or size"):
        await fed((kind << 24 | size).to_bytes(4, "big"))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100_000
    assert set(MOST) == set(RecordKind)


async def test_no_nonce_is_used_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_link, "MAX_RECORDS", 3)
    with linked() as (sender, receiver):
        for _ in range(3):
            await sender.send(RecordKind.DATA, b"x")
            await receiver.receive()
        with pytest.raises(TransportError, match="carried enough"):
            await sender.send(RecordKind.DATA, b"x")
        assert sender.closed.is_set()


async def test_a_cancelled_reader_loses_nothing_and_a_cancelled_writer_ends_the_link() -> None:
    with linked() as (sender, receiver):
        wire = sealed((2, b"whole"))
        await sender._socket.send_all(wire[:9])
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(receiver.receive)
                await trio.testing.wait_all_tasks_blocked()
                assert DataStream(receiver, ONE).pending == 9
                scope.cancel()
        await sender._socket.send_all(wire[9:])
        assert await receiver.receive() == (RecordKind.DATA, b"whole")
        with trio.CancelScope() as scope:
            scope.cancel()
            await sender.send(RecordKind.DATA, b"half of it")
        assert sender.closed.is_set()


async def test_a_stream_that_is_let_go_of_takes_nothing_more() -> None:
    with linked() as (one, other):
        stream, far = DataStream(one, OTHER), DataStream(other, ONE)
        await stream.close()
        await stream.close()
        assert await far.receive_some(9) == await far.receive_some(9) == b""
        for call in (stream.send_all(b"x"), stream.receive_some(1)):
            with pytest.raises(TransportError, match="closed"):
                await call
        await far.reset()
        assert not await stream.drain()


@pytest.mark.parametrize("wrong", [(0, b""), (1, b"/again")])
async def test_what_does_not_belong_into_a_stream_ends_the_link(wrong: tuple[int, bytes]) -> None:
    with linked(left=sealed((2, b"data"), wrong)) as (_, receiver):
        stream = DataStream(receiver, ONE)
        assert await stream.receive_some(99) == b"data"
        with pytest.raises(TransportError):
            await stream.receive_some(99)
        assert receiver.closed.is_set()


async def test_a_lost_connection_is_no_end_of_a_stream() -> None:
    with linked() as (sender, receiver):
        await sender.send(RecordKind.DATA, b"some")
        sender.abandon()
        stream = DataStream(receiver, ONE)
        assert await stream.receive_some(99) == b"some"
        with pytest.raises(TransportError, match="lost"):
            await stream.receive_some(99)


async def test_a_reader_is_woken_when_its_own_end_is_closed() -> None:
    with linked() as (_, receiver):

        async def read() -> None:
            with pytest.raises(TransportError):
                await receiver.receive()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            await trio.testing.wait_all_tasks_blocked()
            receiver.abandon()
