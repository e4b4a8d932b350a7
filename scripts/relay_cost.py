"""Measure what a dedicated relay (docs/how-to/hpc.md) adds: a round trip, bytes, and the speed of bulk.

    python scripts/relay_cost.py [--mbytes 16] [--turns 300] [--spool DIR]

A member that echoes, a relay, and a client, over loopback in a process each. The client reaches the member directly,
through the relay by TCP, and through a relay by a folder (in DIR, the disk to be measured; a temporary one without it).
Told: the median round trip of 64 bytes, the same after a second of silence, seconds to connect, megabytes a second of
bulk both ways together, and bytes that leave the client for each byte of payload.
"""

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import trio

from gossip.core.config import GossipConfig
from gossip.core.errors import RemoteError
from gossip.core.identity import Identity
from gossip.core.ids import PeerId
from gossip.relay_service import RelayService, dialled_outside
from gossip.transport.base import Stream
from gossip.transport.libp2p.libp2p_transport import Libp2pConfig, Libp2pTransport
from gossip.transport.spool.spool_ends import spool_address
from node.system.script_end import ended_in_a_line

ECHO = "/p2ptrain/1/echo"
SMALL = 64
RARE = 10
"""Round trips after a second of silence."""


class Echo:
    """Handlers that send back what comes."""

    async def handle_stream(self, protocol: str, stream: Stream) -> None:
        """Echo a stream."""
        while data := await stream.receive_some(1 << 20):
            await stream.send_all(data)

    def handle_message(self, forwarder: PeerId, data: bytes) -> bool:
        """Ignore a broadcast."""
        return False

    def peer_connected(self, peer: PeerId) -> None:
        """Ignore a peer that comes."""

    def peer_lost(self, peer: PeerId) -> None:
        """Ignore a peer that goes."""

    def uninterested(self, data: bytes) -> frozenset[PeerId]:
        """Broadcast to everybody."""
        return frozenset()

    def keeps(self, peer: PeerId) -> bool:
        """Keep everybody."""
        return True

    def offended(self, peer: PeerId, error: RemoteError) -> None:
        """Ignore an offence."""

    def caller_refused(self, caller: str, why: str) -> None:
        """Ignore a caller."""


async def member() -> None:
    """Echo until killed; print the address."""
    transport = Libp2pTransport(Libp2pConfig(), os.urandom(32))
    async with trio.open_nursery() as nursery:
        await nursery.start(transport.run, Echo())
        print(transport.addresses[0], flush=True)


async def relay(of: str, spool: Path | None) -> None:
    """Relay to a member until killed; print the address."""
    identity = Identity.generate()
    listen = Libp2pConfig().listen if spool is None else ()
    transport = Libp2pTransport(Libp2pConfig(listen=listen, spool=spool), identity.seed)
    service = RelayService(
        identity=identity,
        transport=transport,
        config=GossipConfig(peers=(of,), relay_bytes_per_s=1e12),
        rng=random.Random(),
        warn=print,
        connect=transport.connect_bare,
        outside=dialled_outside((), ()),
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(service.run)
        print(transport.addresses[0] if spool is None else spool_address(transport.peer_id), flush=True)


async def client(of: str, *, via: str, spool: Path | None, mbytes: int, turns: int) -> str:
    """Return a row of figures of a client that reaches `of` directly, or `via` a relay."""
    transport = Libp2pTransport(Libp2pConfig(listen=(), via=via, spool=spool), os.urandom(32))
    async with trio.open_nursery() as nursery:
        await nursery.start(transport.run, Echo())
        if via:
            await transport.dial(via)
        began = time.perf_counter()
        peer = await transport.dial(of)
        connect_s = time.perf_counter() - began
        stream = await transport.open_stream(peer, ECHO)
        trips = [await _turn(stream, bytes(SMALL)) for _ in range(turns)]
        rare = []
        for _ in range(RARE):
            await trio.sleep(1)
            rare.append(await _turn(stream, bytes(SMALL)))
        size, sent = mbytes << 20, transport.wire.sent
        bulk_s = await _turn(stream, bytes(size))
        nursery.cancel_scope.cancel()
    overhead = (transport.wire.sent - sent) / size
    return (
        f"round trip {1e3 * statistics.median(trips):.2f} ms, after a second {1e3 * statistics.median(rare):.0f} ms, "
        f"connected in {1e3 * connect_s:.0f} ms, "
        f"{2 * size / bulk_s / 1e6:.0f} MB/s, {overhead:.4f} bytes a byte"
    )


async def _turn(stream: Stream, data: bytes) -> float:
    began, left = time.perf_counter(), len(data)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stream.send_all, data)
        while left:
            left -= len(await stream.receive_some(1 << 20))
    return time.perf_counter() - began


@contextmanager
def process(*words: object) -> Iterator[str]:
    """Run this script with these words beside us; give what it prints first."""
    child = subprocess.Popen([sys.executable, __file__, *map(str, words)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    with child.stdout:
        try:
            yield child.stdout.readline().strip()
        finally:
            child.kill()
            child.wait()


def main() -> None:
    """Measure, or be one of the processes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--mbytes", type=int, default=16)
    parser.add_argument("--turns", type=int, default=300)
    parser.add_argument("--role", choices=("member", "relay"), help=argparse.SUPPRESS)
    parser.add_argument("--of", help=argparse.SUPPRESS)
    parser.add_argument("--spool", type=Path)
    asked = parser.parse_args()
    if asked.role == "member":
        trio.run(member)
    elif asked.role == "relay":
        trio.run(relay, asked.of, asked.spool)
    else:
        with tempfile.TemporaryDirectory(dir=asked.spool) as folder:
            _measure(Path(folder) / "spool", asked.mbytes, asked.turns)


def _measure(folder: Path, mbytes: int, turns: int) -> None:
    beside = ("--role", "relay", "--of")
    with (
        process("--role", "member") as of,
        process(*beside, of) as via,
        process(*beside, of, "--spool", folder) as shared,
    ):
        ways: dict[str, tuple[str, Path | None]] = {
            "direct": ("", None),
            "relay": (via, None),
            "spool": (shared, folder),
        }
        for name, (through, spool) in ways.items():
            print(
                f"{name:8}",
                trio.run(partial(client, of, via=through, spool=spool, mbytes=mbytes, turns=turns)),
                flush=True,
            )


if __name__ == "__main__":
    with ended_in_a_line():
        main()
