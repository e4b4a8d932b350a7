"""What a reader says to its writer over real libp2p: seldom, and always in time."""

from typing import Any

import libp2p.stream_muxer.yamux.yamux as yamux_module
import pytest
import trio
from libp2p.peer.peerinfo import info_from_p2p_addr
from libp2p_harness import ECHO, HOLD, Node, running, stock, until
from multiaddr import Multiaddr

from gossip.transport.libp2p.libp2p_stream import Libp2pStream
from gossip.transport.libp2p.yamux_stream import STREAM_WINDOW, SteadyStream

MIB = 1 << 20


class Updates:
    """Counts the window updates that streams send, and the bytes that they grant."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, kind: type[Any]) -> None:
        self.granted: list[int] = []
        send = kind.send_window_update

        async def counted(stream: Any, increment: int, skip_lock: bool = False) -> None:
            self.granted.append(increment)
            await send(stream, increment, skip_lock)

        monkeypatch.setattr(kind, "send_window_update", counted)


async def read_all(stream: Any, size: int, at_once: int) -> None:
    while size:
        data = await stream.receive_some(min(size, at_once))
        assert data
        size -= len(data)


async def sent_and_read(size: int, at_once: int) -> Libp2pStream:
    """One node sends to another, which reads so many bytes at a time; the reading end."""
    sender, reader = Node(), Node()
    async with running(sender, reader):
        await sender.transport.dial(reader.address)
        stream = await sender.transport.open_stream(reader.peer_id, HOLD)
        await until(lambda: reader.held)
        held: Any = reader.held[0]
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(stream.send_all, bytes(size))
                await read_all(held, size, at_once)
        reader.release.set()
        await stream.reset()
        return held


async def test_a_window_is_given_back_in_halves(monkeypatch: pytest.MonkeyPatch) -> None:
    updates = Updates(monkeypatch, SteadyStream)
    await sent_and_read(16 * MIB, 64 * 1024)
    # 128 if the window stayed at its first 256 KiB; stock code sends one for nearly each of 256 reads.
    assert 4 <= len(updates.granted) <= 130
    assert min(updates.granted) >= 128 * 1024
    assert sum(updates.granted) <= 16 * MIB + STREAM_WINDOW


async def test_stock_code_grants_at_nearly_every_read(monkeypatch: pytest.MonkeyPatch) -> None:
    updates = Updates(monkeypatch, yamux_module.YamuxStream)
    size, done = 4 * MIB, trio.Event()

    async def read(stream: Any) -> None:
        left = size
        while left:
            left -= len(await stream.read(16 * 1024))
        done.set()

    async with stock() as (host, address), stock() as (other, _):
        host.set_stream_handler(ECHO, read)
        await other.connect(libp2p_info(address))
        stream = await other.new_stream(libp2p_info(address).peer_id, [ECHO])
        with trio.fail_after(30):
            for _ in range(size // 65_507 + 1):
                await stream.write(bytes(65_507))
            await done.wait()
    assert len(updates.granted) > 128


def libp2p_info(address: str) -> Any:
    return info_from_p2p_addr(Multiaddr(address))


@pytest.mark.parametrize("at_once", [1000, 200_000, 5 * MIB])
async def test_a_writer_never_waits_for_room_that_has_been_read(at_once: int) -> None:
    await sent_and_read(3 * MIB + 17, at_once)
