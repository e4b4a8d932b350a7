"""A transport within limits: what its streams send and receive goes no faster than a node's owner allows.

Sending waits before each piece; receiving waits after it, so that the stream's window fills and the far end slows down.
Broadcasts are not counted: announcements are a few hundred bytes, and one that waits is worth nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import trio

from gossip.core.ids import PeerId
from gossip.core.rate_limit import TokenBucket
from gossip.transport.base import Grant, Stream, Transport, TransportHandlers
from gossip.transport.wire_bytes import WireBytes

BURST_S: Final = 0.25
"""What an idle link has saved up. A second's worth would show as a stutter in somebody's call; a tenth is below what a
busy event loop keeps to."""

PIECE_BYTES: Final = 16 << 10
"""Sent or received at a time, so that streams take turns: a second of the slowest transfer that is borne
(limits.MIN_RATE), and as little as a bucket of 64 KiB a second has saved up."""


def bucket(bytes_per_s: float) -> TokenBucket:
    """The bytes that may go one way, at a rate of the link's owner's choosing."""
    return TokenBucket(burst=bytes_per_s * BURST_S, per_s=bytes_per_s)


class ThrottledStream:
    """A stream whose bytes go no faster than the buckets allow."""

    def __init__(self, stream: Stream, up: TokenBucket | None, down: TokenBucket | None) -> None:
        self._stream, self._up, self._down = stream, up, down

    @property
    def remote(self) -> PeerId:
        """Return the peer at the far end."""
        return self._stream.remote

    @property
    def pending(self) -> int:
        """Return the bytes that are here and wait for the rest of their record."""
        return self._stream.pending

    async def send_all(self, data: bytes | memoryview) -> None:
        """Send all of `data`, each piece when the bucket allows it. Raises TransportError."""
        if self._up is None:
            await self._stream.send_all(data)
            return
        view = memoryview(data)
        for start in range(0, len(view), PIECE_BYTES):
            piece = view[start : start + PIECE_BYTES]
            await trio.sleep(self._up.reserve(len(piece), trio.current_time()))
            await self._stream.send_all(piece)

    async def receive_some(self, max_bytes: int) -> bytes:
        """Wait until what was received before is paid for, then receive at most `max_bytes`. A cancellation loses
        nothing, since the wait comes first."""
        if self._down is None:
            return await self._stream.receive_some(max_bytes)
        await trio.sleep(self._down.reserve(0, trio.current_time()))
        data = await self._stream.receive_some(min(max_bytes, PIECE_BYTES))
        self._down.reserve(len(data), trio.current_time())
        return data

    async def close(self) -> None:
        """Say that we are done sending and release the stream."""
        await self._stream.close()

    async def reset(self) -> None:
        """Abandon the stream at once, also under cancellation."""
        await self._stream.reset()


class _ThrottledHandlers:
    """Pass a transport's calls on to `inner`, which sees limited streams."""

    def __init__(self, inner: TransportHandlers, paced: Callable[[Stream], Stream]) -> None:
        self._inner, self._paced = inner, paced
        self.handle_message = inner.handle_message
        self.peer_connected = inner.peer_connected
        self.peer_lost = inner.peer_lost
        self.uninterested = inner.uninterested
        self.keeps = inner.keeps
        self.offended = inner.offended
        self.caller_refused = inner.caller_refused

    async def handle_stream(self, protocol: str, stream: Stream) -> None:
        """Hand over a stream that a peer opened, within the limits."""
        await self._inner.handle_stream(protocol, self._paced(stream))


class ThrottledTransport:
    """A transport whose streams keep to the limits. `up` and `down` in bytes a second; None: as fast as it goes."""

    def __init__(self, transport: Transport, *, up: float | None, down: float | None) -> None:
        self._transport = transport
        self._up = None if up is None else bucket(up)
        self._down = None if down is None else bucket(down)

    @property
    def peer_id(self) -> PeerId:
        """Return our own peer id."""
        return self._transport.peer_id

    @property
    def addresses(self) -> Sequence[str]:
        """Return the addresses at which we listen."""
        return self._transport.addresses

    @property
    def peers(self) -> frozenset[PeerId]:
        """Return the peers with a live connection."""
        return self._transport.peers

    @property
    def drops(self) -> Mapping[str, int]:
        """Return what was refused, let go or survived, by kind."""
        return self._transport.drops

    @property
    def wire(self) -> WireBytes:
        """Return all bytes sent and received since the start."""
        return self._transport.wire

    def dialled_us(self, peer: PeerId) -> bool:
        """Return whether a live connection to `peer` is one that it dialled."""
        return self._transport.dialled_us(peer)

    def network_of(self, peer: PeerId) -> str | None:
        """Return the network that a connection to `peer` leads to, if it is known."""
        return self._transport.network_of(peer)

    def address_at(self, peer: PeerId, port: int) -> str | None:
        """Return the multiaddr of this port on the host of `peer`; None where that is not known."""
        return self._transport.address_at(peer, port)

    async def relayed_by(self, peer: PeerId) -> Grant | None:
        """Ask `peer` to relay for us; None where it does not."""
        return await self._transport.relayed_by(peer)

    async def run(
        self, handlers: TransportHandlers, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Listen and serve until cancelled; `handlers` see limited streams. Raises LocalError."""
        await self._transport.run(_ThrottledHandlers(handlers, self._paced), task_status=task_status)

    async def dial(self, address: str) -> PeerId:
        """Connect to a multiaddr; return the peer there. Raises TransportError or LocalError."""
        return await self._transport.dial(address)

    async def probe(self, address: str) -> str | None:
        """Return the network from which the peer of the address answers. TransportError or LocalError: it does not."""
        return await self._transport.probe(address)

    async def open_stream(self, peer: PeerId, protocol: str, *, bulk: bool = False) -> Stream:
        """Open a stream to a connected peer, within the limits. Raises TransportError."""
        return self._paced(await self._transport.open_stream(peer, protocol, bulk=bulk))

    async def publish(self, data: bytes) -> None:
        """Broadcast `data`; broadcasts are not limited."""
        await self._transport.publish(data)

    async def disconnect(self, peer: PeerId) -> None:
        """Close all connections to `peer`."""
        await self._transport.disconnect(peer)

    def _paced(self, stream: Stream) -> Stream:
        return ThrottledStream(stream, self._up, self._down)


def within(transport: Transport, *, up: float | None, down: float | None) -> Transport:
    """`transport` within these limits; itself where there are none."""
    return transport if up is None and down is None else ThrottledTransport(transport, up=up, down=down)
