"""The ends of peers and of ourselves over real sockets: deaths are noticed, and nothing is left behind."""

import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio
from libp2p_harness import ECHO, HOLD, Node, attacking, delimited, delivered, receive_exactly, running, until

from gossip.transport.base import TransportError

pytestmark = pytest.mark.alone  # a child that is kept waiting for a core would count as dead

REPOSITORY = Path(__file__).parents[2]
PROMPT_S = 8.0
"""Sooner than a silent peer is given up: 20 s."""


CHILD = """
import os, sys, trio
from gossip.transport.libp2p.libp2p_transport import Libp2pConfig, Libp2pTransport

class Handlers:
    async def handle_stream(self, protocol, stream):
        while data := await stream.receive_some(1 << 20):
            await stream.send_all(data)
    def handle_message(self, forwarder, data): return True
    def peer_connected(self, peer): pass
    def peer_lost(self, peer): pass
    def uninterested(self, data): return frozenset()
    def keeps(self, peer): return True

async def main():
    transport = Libp2pTransport(Libp2pConfig(), os.urandom(32))
    async with trio.open_nursery() as nursery:
        await nursery.start(transport.run, Handlers())
        print(transport.addresses[0], flush=True)

trio.run(main)
"""


@contextmanager
def child() -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A node in a process of its own, and its address."""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, "-c", CHILD]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


@pytest.mark.parametrize("how", [pytest.param(signal.SIGKILL, marks=pytest.mark.thorough), signal.SIGSTOP])
async def test_a_peer_that_dies_or_falls_silent_is_noticed(how: signal.Signals) -> None:
    a = Node(heartbeat_s=0.3, missed_beats=5)
    with child() as (process, address):
        async with running(a):
            peer = await a.transport.dial(address)
            assert await a.echo(peer) == b"hello"
            stream = await a.transport.open_stream(peer, ECHO)
            await trio.sleep(1.8)  # longer than the missed beats: silence of the protocol is not silence of the peer
            assert a.transport.peers == {peer}
            process.send_signal(how)
            await until(lambda: a.log == [("up", peer), ("lost", peer)])
            with pytest.raises(TransportError):
                await receive_exactly(stream, 1)


async def test_a_stopped_peer_delays_neither_disconnecting_nor_the_end() -> None:
    a = Node()
    with child() as (process, address):
        async with running(a):
            peer = await a.transport.dial(address)
            stream = await a.transport.open_stream(peer, ECHO)
            process.send_signal(signal.SIGSTOP)
            async with trio.open_nursery() as nursery:

                async def flood() -> None:
                    with pytest.raises(TransportError):
                        await stream.send_all(bytes(32 << 20))

                nursery.start_soon(flood)
                await trio.sleep(0.2)
                with trio.fail_after(PROMPT_S):
                    await a.transport.disconnect(peer)
            assert a.transport.peers == frozenset()


async def test_nothing_is_left_after_the_end() -> None:
    threads = set(threading.enumerate())
    a, b = Node(), Node()
    root = trio.lowlevel.current_root_task()
    assert root is not None
    before = {task for nursery in root.child_nurseries for task in nursery.child_tasks}
    async with running(a, b):
        await a.transport.dial(b.address)
        await a.transport.open_stream(b.peer_id, HOLD)
        await delivered(a, b, b"x")
        started = trio.current_time()
    assert trio.current_time() - started < PROMPT_S
    await until(lambda: {task for nursery in root.child_nurseries for task in nursery.child_tasks} == before)
    assert set(threading.enumerate()) <= threads  # trio retires idle threads that were there before
    gc.collect()  # an unclosed socket would warn here, and warnings are errors


async def test_what_remotes_do_prints_nothing() -> None:
    with child() as (process, address):
        async with attacking(address) as attacker:
            stream = await attacker.raw_stream()
            await stream.write(delimited(b"\xff\xfe\n"))
            stream = await attacker.stream("/meshsub/1.1.0")
            await stream.write(delimited(b"\xff" * 20))
            await attacker.muxed.secured_conn.write(b"\xff" * 64)
            await trio.sleep(0.3)
        process.send_signal(signal.SIGKILL)
        assert process.stdout is not None
        assert process.stderr is not None
        assert (process.stdout.read(), process.stderr.read()) == ("", "")
