"""Real nodes on loopback, and a stock libp2p host that attacks them."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import libp2p
import trio
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.crypto.x25519 import create_new_key_pair as create_new_noise_key_pair
from libp2p.peer.id import ID
from libp2p.security.noise.transport import PROTOCOL_ID as NOISE_ID
from libp2p.security.noise.transport import Transport as NoiseTransport
from libp2p.stream_muxer.yamux.yamux import PROTOCOL_ID as YAMUX_ID
from libp2p.stream_muxer.yamux.yamux import Yamux
from libp2p.transport.tcp.tcp import TCP
from libp2p.transport.upgrader import TransportUpgrader
from multiaddr import Multiaddr

from gossip.core.errors import RemoteError
from gossip.core.ids import PeerId
from gossip.transport.base import Admission, Stream
from gossip.transport.libp2p.libp2p_transport import Libp2pConfig, Libp2pTransport
from gossip.transport.pnet import PresharedKey

ECHO = "/p2ptrain/1/echo"
BOOM = "/p2ptrain/1/boom"
HOLD = "/p2ptrain/1/hold"

PATIENCE_S = 60.0
"""Only a broken test waits so long. What is waited for takes a moment, and many times that on a busy machine."""


class Node:
    """Handlers that remember what they saw: echoes, holds a stream unread, or raises, by protocol."""

    def __init__(
        self, *, seed: bytes = b"", admission: Admission | None = None, psk: PresharedKey | None = None, **config: Any
    ) -> None:
        self.transport = Libp2pTransport(Libp2pConfig(**config), seed or os.urandom(32), admission=admission, psk=psk)
        self.refused: list[tuple[str, str]] = []
        self.offences: list[tuple[PeerId, RemoteError]] = []
        self.messages: list[tuple[PeerId, bytes]] = []
        self.log: list[tuple[str, PeerId]] = []
        self.held: list[Stream] = []
        self.release = trio.Event()

    @property
    def peer_id(self) -> PeerId:
        return self.transport.peer_id

    @property
    def address(self) -> str:
        return self.transport.addresses[0]

    async def handle_stream(self, protocol: str, stream: Stream) -> None:
        if protocol == BOOM:
            raise ZeroDivisionError("a bug of ours")
        if protocol == HOLD:
            self.held.append(stream)
            await self.release.wait()
        while data := await stream.receive_some(1 << 20):
            await stream.send_all(data)

    def handle_message(self, forwarder: PeerId, data: bytes) -> bool:
        if data == b"boom":
            raise ZeroDivisionError("a bug of ours")
        self.messages.append((forwarder, data))
        return data != b"invalid"

    def peer_connected(self, peer: PeerId) -> None:
        self.log.append(("up", peer))

    def peer_lost(self, peer: PeerId) -> None:
        self.log.append(("lost", peer))

    def uninterested(self, data: bytes) -> frozenset[PeerId]:
        return frozenset()

    def keeps(self, peer: PeerId) -> bool:
        return True

    def offended(self, peer: PeerId, error: RemoteError) -> None:
        self.offences.append((peer, error))

    def caller_refused(self, caller: str, why: str) -> None:
        self.refused.append((caller, why))

    async def echo(self, peer: PeerId, data: bytes = b"hello") -> bytes:
        """Send to a peer's echo and read it back."""
        stream = await self.transport.open_stream(peer, ECHO)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream.send_all, data)
            answer = await receive_exactly(stream, len(data))
        await stream.close()
        return answer


class Choosy(Node):
    """Keeps those that it is told to keep."""

    kept: frozenset[PeerId] = frozenset()

    def keeps(self, peer: PeerId) -> bool:
        return peer in self.kept


@asynccontextmanager
async def running(*nodes: Node) -> AsyncIterator[None]:
    """The nodes, listening; stopped at the end."""
    async with trio.open_nursery() as nursery:
        for node in nodes:
            await nursery.start(node.transport.run, node)
        yield
        nursery.cancel_scope.cancel()


async def receive_exactly(stream: Stream, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        data = await stream.receive_some(size - len(parts))
        assert data, f"the stream ended after {len(parts)} of {size} bytes"
        parts += data
    return bytes(parts)


async def until(condition: Any, within_s: float = PATIENCE_S) -> None:
    """Poll: what is awaited happens in another task or process, driven by sockets."""
    with trio.fail_after(within_s):
        while not condition():  # noqa: ASYNC110
            await trio.sleep(0.01)


async def assert_serves(victim: Node, topic_too: bool = True) -> None:
    """A newcomer can connect, use streams and broadcast: the victim has survived."""
    friend = Node()
    async with running(friend):
        await friend.transport.dial(victim.address)
        assert await friend.echo(victim.peer_id, b"still there?") == b"still there?"
        if topic_too:
            await delivered(friend, victim, b"can you hear me?")


async def delivered(sender: Node, receiver: Node, data: bytes, within_s: float = PATIENCE_S) -> None:
    """Broadcast until it arrives: delivery is lossy, above all before the mesh has formed."""
    with trio.fail_after(within_s):
        while data not in [message for _, message in receiver.messages]:
            await sender.transport.publish(data)
            await trio.sleep(0.1)


class Attacker:
    """One connection with stock Noise and yamux, and the raw bytes of streams."""

    def __init__(self, muxed: Yamux, raw: Any) -> None:
        self.muxed = muxed
        self.raw = raw

    async def raw_stream(self) -> Any:
        return await self.muxed.open_stream()

    async def stream(self, protocol: str) -> Any:
        """A stream on which multistream-select is done with."""
        stream = await self.muxed.open_stream()
        await stream.write(delimited(b"/multistream/1.0.0\n") + delimited(protocol.encode() + b"\n"))
        with trio.fail_after(PATIENCE_S):
            answer = b""
            while answer.count(b"\n") < 2:
                answer += await stream.read(1000)
        assert protocol.encode() in answer
        return stream


def delimited(data: bytes) -> bytes:
    assert len(data) < 128
    return bytes([len(data)]) + data


def upgrader_with(security: dict[Any, Any] | None = None, muxers: dict[Any, Any] | None = None) -> TransportUpgrader:
    return TransportUpgrader(security or {NOISE_ID: noise()}, muxers or {YAMUX_ID: Yamux})


def noise() -> NoiseTransport:
    return NoiseTransport(create_new_key_pair(os.urandom(32)), create_new_noise_key_pair().private_key)


async def upgraded(address: str, upgrader: TransportUpgrader) -> tuple[Any, Any]:
    """Dial and upgrade as a client that offers what `upgrader` has: the muxed and the raw connection."""
    parsed = Multiaddr(address)
    raw = await TCP().dial(parsed)
    try:
        with trio.fail_after(PATIENCE_S):
            secured = await upgrader.upgrade_security(raw, True, ID.from_string(str(parsed.get_peer_id())))
            return await upgrader.upgrade_connection(secured, secured.get_remote_peer()), raw
    except BaseException:
        with trio.CancelScope(shield=True):
            await raw.close()
        raise


@asynccontextmanager
async def attacking(address: str) -> AsyncIterator[Attacker]:
    muxed, raw = await upgraded(address, upgrader_with())
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(muxed.start)
            await muxed.event_started.wait()
            yield Attacker(muxed, raw)
            nursery.cancel_scope.cancel()
    finally:
        with trio.CancelScope(shield=True):
            await raw.close()


@asynccontextmanager
async def stock(**options: Any) -> AsyncIterator[tuple[Any, str]]:
    """A host as libp2p makes it, and its address. Its own end, if it comes, is raised when the block ends."""
    host = libp2p.new_host(**options)
    async with host.run([Multiaddr("/ip4/127.0.0.1/tcp/0")]):
        yield host, str(host.get_addrs()[0])
        for connection in host.get_network().get_connections():
            await connection.close()  # it leaks the sockets it dialled otherwise
