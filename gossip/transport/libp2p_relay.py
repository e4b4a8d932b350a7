"""Circuits at their ends: a stream through a relay becomes a connection like any other.

What a relay carries is taken for a socket: Noise between the two ends proves both keys, and yamux over it makes
streams, heartbeats and the end of a dead one. libp2p's own circuit relay is not used (decision 0021).
A circuit is nobody's proof of being reachable, has no address, and no data connections of its own.
"""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import trio
from libp2p.io.exceptions import IOException
from libp2p.network.connection.raw_connection import RawConnection

from gossip.errors import GossipError, Reason, RemoteError
from gossip.ids import PeerId
from gossip.protocol.messages import encode_answer, encode_refusal, parse_empty_answer
from gossip.protocol.relaying import (
    MAX_CIRCUITS,
    MAX_RELAY_ANSWER_BYTES,
    MAX_RELAY_BYTES,
    RELAY_PROTOCOL,
    RELAY_S,
    circuit_address,
    encode_relay_ask,
    parse_relayed,
)
from gossip.running.session import FrameStream
from gossip.transport.base import Stream, TransportError
from gossip.transport.libp2p_address import parse_peer
from gossip.transport.libp2p_errors import translated
from gossip.transport.libp2p_guard import Faults
from gossip.transport.libp2p_host import BoundedSwarm

READ_BYTES: Final = 64 * 1024
"""Asked of the stream at a time: a Noise message."""


class CircuitSocket:
    """A stream, as libp2p's upgrader wants a socket: `read(n)` returns exactly n bytes, or fewer at the end."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._buffer = bytearray()

    @property
    def peer_name(self) -> tuple[str, int]:
        """There is none. Raises OSError."""
        raise OSError("a circuit has no address of its own")

    async def read(self, n: int | None = None) -> bytes:
        """Bytes from the circuit. Raises IOException once it is gone."""
        wanted = 1 if n is None else n
        while len(self._buffer) < wanted:
            try:
                piece = await self._stream.receive_some(READ_BYTES)
            except TransportError as error:
                raise IOException("the circuit is gone") from error
            if not piece:
                break
            self._buffer += piece
        size = len(self._buffer) if n is None else n
        data = bytes(self._buffer[:size])
        del self._buffer[:size]
        return data

    async def write(self, data: bytes) -> None:
        """Send all of it. Raises IOException once the circuit is gone."""
        try:
            await self._stream.send_all(data)
        except TransportError as error:
            raise IOException("the circuit is gone") from error

    async def close(self) -> None:
        """Both ways, at once."""
        await self._stream.reset()

    def get_remote_address(self) -> tuple[str, int] | None:
        """There is none."""
        return None


class CircuitEnds:
    """The circuits that end here. `open_stream`: to a connected peer."""

    def __init__(
        self, swarm: BoundedSwarm, faults: Faults, open_stream: Callable[[PeerId, str], Awaitable[Stream]]
    ) -> None:
        self._swarm = swarm
        self._faults = faults
        self._open_stream = open_stream
        self._relays: set[PeerId] = set()
        self._held: set[Any] = set()
        self._coming = 0
        """Circuits on their way: a handshake takes its time, and counts from its beginning."""

    def drop(self, relay: PeerId) -> None:
        """The last connection to a peer is gone: what it granted is over."""
        self._relays.discard(relay)

    async def granted_by(self, relay: PeerId, me: PeerId) -> str | None:
        """Ask a connected peer to relay for us: our address through it, or None."""
        try:
            stream = await self._asked(relay, None)
        except GossipError:
            return None
        await stream.close()
        self._relays.add(relay)
        return circuit_address(relay, me)

    async def dial(self, relay: PeerId, target: PeerId) -> None:
        """A connection to `target` through `relay`. Raises TransportError."""
        if self._full():
            raise TransportError(f"{MAX_CIRCUITS} circuits end here already")
        with self._on_its_way():
            await self._add(await self._upgraded(await self._asked(relay, target), target, dials=True))

    async def probe(self, relay: PeerId, target: PeerId) -> None:
        """Whether `target` answers through `relay`. Raises TransportError."""
        muxed = await self._upgraded(await self._asked(relay, target), target, dials=True)
        with trio.CancelScope(shield=True):
            await muxed.secured_conn.close()

    async def accept(self, stream: Stream) -> None:
        """A relay has somebody for us; serve that circuit to its end. Raises nothing of a remote's making."""
        try:
            await self._accepted(stream)
        except GossipError as error:
            self._faults.note("circuit", error)
        finally:
            with trio.CancelScope(shield=True):
                await stream.reset()

    async def _accepted(self, stream: Stream) -> None:
        frames = FrameStream(stream, RELAY_S)
        raw = await frames.receive(MAX_RELAY_BYTES)
        if raw is None:
            return
        asker = parse_relayed(raw)
        if stream.remote not in self._relays or self._full():
            await frames.send(encode_refusal(Reason.UNAVAILABLE, "no circuit is wanted"))
            return
        with self._on_its_way():
            await frames.send(encode_answer())
            muxed = await self._upgraded(stream, asker, dials=False)
            await self._add(muxed)
        await muxed.event_closed.wait()

    def _full(self) -> bool:
        """Whether as many circuits end here, or are about to, as may. Nothing is awaited until one is counted."""
        self._held = {muxed for muxed in self._held if not muxed.event_closed.is_set()}
        return len(self._held) + self._coming >= MAX_CIRCUITS

    @contextmanager
    def _on_its_way(self) -> Iterator[None]:
        """Count a circuit until it is held, or has failed."""
        self._coming += 1
        try:
            yield
        finally:
            self._coming -= 1

    async def _asked(self, relay: PeerId, target: PeerId | None) -> Stream:
        """A stream on which the relay has granted what was asked. Raises TransportError, RemoteError."""
        stream = await self._open_stream(relay, RELAY_PROTOCOL)
        try:
            frames = FrameStream(stream, 2 * RELAY_S)  # it has to ask the far end first
            await frames.send(encode_relay_ask(target))
            parse_empty_answer(await frames.receive(MAX_RELAY_ANSWER_BYTES) or b"")
        except BaseException as error:
            with trio.CancelScope(shield=True):
                await stream.reset()
            if isinstance(error, RemoteError):
                raise TransportError(f"the relay {relay}: {error}") from error
            raise
        return stream

    async def _upgraded(self, stream: Stream, peer: PeerId, *, dials: bool) -> Any:
        """Noise and yamux with `peer` over the stream, and with nobody else. Raises TransportError."""
        raw = RawConnection(CircuitSocket(stream), dials)
        try:
            with translated(f"a circuit with {peer}"), trio.fail_after(RELAY_S):
                secured = await self._swarm.upgrader.upgrade_security(raw, dials, parse_peer(peer) if dials else None)
                if str(secured.get_remote_peer()) != peer:
                    raise TransportError("another peer answers than the relay says")
                return await self._swarm.upgrader.upgrade_connection(secured, secured.get_remote_peer())
        except BaseException:
            with trio.CancelScope(shield=True):
                await stream.reset()
            raise

    async def _add(self, muxed: Any) -> None:
        """Not as inbound, nor as dialled: it holds none of their places, and shows nobody's reachability."""
        with translated("a circuit"):
            await self._swarm.add_conn(muxed)
        self._held.add(muxed)
