"""Strangers' sockets, places and frames on a live node: it stays up, quick and small, and honest peers are served.

Each attack did harm before its defence was there; what it did is said in the test.
"""

import struct
from contextlib import AsyncExitStack

import psutil
import pytest
import trio
from hostile_harness import LAG_S, swallowed, tcp, watched
from libp2p_harness import (
    ECHO,
    HOLD,
    PATIENCE_S,
    Choosy,
    Node,
    assert_serves,
    attacking,
    delimited,
    running,
    until,
    upgraded,
    upgrader_with,
)

from gossip.transport.connection_limits import ConnectionBounds
from gossip.transport.libp2p.frame_meter import FRAMES_OF_STRANGER, LIGHT_PER_SECOND, STRANGERS_PER_SECOND

# -- before anybody has proved who he is


async def test_a_name_of_any_length_is_not_waited_for() -> None:
    """An unknown caller could announce 2**64 bytes and fill the memory for the ten seconds of a handshake."""
    victim = Node()
    async with running(victim):
        before = psutil.Process().memory_info().rss
        stream = await tcp(victim.address)
        await stream.send_all(b"\xff" * 9 + b"\x01")
        assert await swallowed(stream.send_all, bytes(1 << 20), most=200 << 20) < 40 << 20  # what the kernel holds
        assert psutil.Process().memory_info().rss - before < 64 << 20
        await stream.aclose()
        await until(lambda: victim.transport.faults.get("handshake"))
        await assert_serves(victim, topic_too=False)


async def test_silent_sockets_shut_nobody_out() -> None:
    """64 sockets that said nothing were all it took, and six new ones a second, to keep every newcomer out for good."""
    victim = Node()
    async with running(victim):
        silent = [await tcp(victim.address) for _ in range(ConnectionBounds().handshakes + 20)]
        await until(lambda: victim.transport.faults.get("handshake_cut_short", 0) >= 20)
        await assert_serves(victim, topic_too=False)
        for stream in silent:
            await stream.aclose()


# -- places


async def test_idle_strangers_shut_nobody_out_and_push_no_neighbour_out() -> None:
    """Connections that did nothing held their places for ever; when all were taken we could not even dial."""
    victim, friend, other = Choosy(bounds=ConnectionBounds(inbound=8)), Node(), Node()
    async with running(victim, friend, other):
        victim.kept = frozenset({friend.peer_id})
        await friend.transport.dial(victim.address)
        idle = [(await upgraded(victim.address, upgrader_with()))[1] for _ in range(20)]
        await until(lambda: victim.transport.faults.get("made_room", 0) >= 13)
        assert friend.peer_id in victim.transport.peers
        assert await friend.echo(victim.peer_id) == b"hello"
        await victim.transport.dial(other.address)
        assert await victim.echo(other.peer_id) == b"hello"
        await assert_serves(victim, topic_too=False)
        for raw in idle:
            await raw.close()


async def test_bare_sockets_cost_nobody_a_place() -> None:
    victim = Choosy(bounds=ConnectionBounds(inbound=4))
    async with running(victim):
        idle = [(await upgraded(victim.address, upgrader_with()))[1] for _ in range(4)]
        await until(lambda: len(victim.transport.peers) == 4)
        for _ in range(10):
            await (await tcp(victim.address)).aclose()
        await until(lambda: victim.transport.faults.get("handshake", 0) >= 10)
        assert len(victim.transport.peers) == 4
        for raw in idle:
            await raw.close()


# -- frames


def frame(kind: int, flags: int, stream: int, length: int) -> bytes:
    return struct.pack(">BBHII", 0, kind, flags, stream, length)


@pytest.mark.parametrize(
    ("flood", "fault"),
    [(frame(2, 2, 0, 7), "frame_flood"), (frame(9, 0, 0, 7), "unknown_frame"), (frame(1, 0, 9999, 1), "frame_flood")],
    ids=["pongs", "unknown", "windows of no stream"],
)
async def test_floods_of_empty_frames_are_cut_off(flood: bytes, fault: str) -> None:
    """A megabyte a second of pongs held the event loop for 0.2 s at a time, one connection alone."""
    victim = Node()
    async with running(victim), watched() as watch:
        async with attacking(victim.address) as attacker:
            block = flood * (5 * LIGHT_PER_SECOND)
            # What is "taken" is not counted: libp2p's writer takes everything once its own side has seen the cut.
            await swallowed(attacker.muxed.secured_conn.write, block, most=200 * len(block))
            await until(lambda: victim.transport.faults.get(fault))
            await until(lambda: not victim.transport.peers)
        assert watch.worst_s < LAG_S
        await assert_serves(victim, topic_too=False)


async def test_a_crowd_of_tiny_frames_waits_and_a_neighbour_does_not() -> None:
    """Frames with a byte each on a stream that is open carry something, so they were never cut off: one stranger took a
    core, at a megabyte a second."""
    victim, friend = Choosy(), Node()
    async with running(victim, friend), watched() as watch, AsyncExitStack() as stack:
        victim.kept = frozenset({friend.peer_id})
        await friend.transport.dial(victim.address)
        await until(lambda: victim.transport.peers)
        tiny, crowd = frame(0, 0, 1, 1) + b"x", []
        for _ in range(4):
            attacker = await stack.enter_async_context(attacking(victim.address))
            assert (await attacker.stream(HOLD)).stream_id == 1
            crowd.append(attacker)
        served = [each.muxed_conn for each in victim.transport._swarm.get_connections() if each.muxed_conn.streams]
        before, began = sum(each._heard for each in served), trio.current_time()
        async with trio.open_nursery() as nursery:
            for attacker in crowd:
                nursery.start_soon(swallowed, attacker.muxed.secured_conn.write, tiny * 4000, 60_000 * len(tiny))
            for _ in range(20):
                assert await friend.echo(victim.peer_id) == b"hello"
                await trio.sleep(0.1)
            nursery.cancel_scope.cancel()
        seconds = int(trio.current_time() - began) + 2  # begun ones
        frames = (sum(each._heard for each in served) - before) / 2  # a head and a body
        assert frames <= seconds * (STRANGERS_PER_SECOND + 4 * FRAMES_OF_STRANGER + 1000)
        assert watch.worst_s < LAG_S


async def test_a_frame_is_not_read_before_its_window_is_known() -> None:
    """Each connection could pin 16 MiB in an unfinished frame for a stream that does not exist."""
    victim = Node()
    async with running(victim), attacking(victim.address) as attacker:
        await attacker.muxed.secured_conn.write(frame(0, 0, 9999, 16 << 20))
        await swallowed(attacker.muxed.secured_conn.write, bytes(65_000), most=4 << 20)
        await until(lambda: victim.transport.faults.get("frame_too_large"))
        await assert_serves(victim, topic_too=False)


async def test_a_protocol_name_of_any_length_resets_its_stream_alone() -> None:
    """Each stream could pin a hundred windows, 64 streams a connection: 170 MiB by twenty of them."""
    victim = Node()
    async with running(victim), attacking(victim.address) as attacker:
        good = await attacker.stream(ECHO)
        stream = await attacker.raw_stream()
        await stream.write(delimited(b"/multistream/1.0.0\n") + b"\xff" * 8 + b"\x01")
        assert await swallowed(stream.write, bytes(65_000), most=16 << 20) < 1 << 20
        await good.write(b"ping")
        with trio.fail_after(PATIENCE_S):
            assert await good.read(4) == b"ping"
