"""Circuits at their ends: a stream through a relay becomes a connection like any other.

The messages are those of libp2p's circuit relay v2, its code is not used (decision 0021). What a relay carries is taken
for a socket: where the network is private its pre-shared key hides all of it, as go and js have it; Noise between the
two ends proves both keys, and yamux over it makes streams, heartbeats and the end of a dead one. A circuit is nobody's
proof of being reachable, has no address, and no data connections of its own. Where a relay names a limit it is not kept
to here: the relay ends the circuit then, and there is another dial.
"""

import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import trio
from libp2p.io.exceptions import IOException
from libp2p.network.connection.raw_connection import RawConnection

from gossip.core.errors import GossipError, LocalError, Reason, RemoteError
from gossip.core.ids import PeerId
from gossip.reachability.circuit import (
    HOP_PROTOCOL,
    CircuitKind,
    CircuitMessage,
    CircuitStatus,
    encode_hop,
    encode_stop,
    is_peer,
    parse_hop,
    parse_stop,
    status_for,
    words_for,
)
from gossip.reachability.delimited_task import receive_message, send_message
from gossip.reachability.relay import MAX_CIRCUITS, RELAY_S, circuit_address, lasting
from gossip.reachability.vouchers import check_voucher
from gossip.transport.base import Grant, Stream, TransportError
from gossip.transport.libp2p.fault_guard import Faults
from gossip.transport.libp2p.host import BoundedSwarm
from gossip.transport.libp2p.libp2p_errors import translated
from gossip.transport.libp2p.multiaddrs import parse_peer
from gossip.transport.libp2p.tcp import MULTISTREAM
from gossip.transport.pnet import PnetStream, PresharedKey

MAX_RELAYS: Final = 16
"""Relays whose reservation for us is remembered: three are held at a time (reachability/reachability_task.py), and some
are lost and found."""

READ_BYTES: Final = 64 * 1024
"""Asked of the stream at a time: a Noise message."""


class CircuitSocket:
    """A stream, as libp2p's upgrader wants a socket: `read(n)` returns exactly n bytes, or fewer at the end; behind a
    pre-shared key, if any."""

    def __init__(self, stream: Stream, psk: PresharedKey | None = None) -> None:
        self._stream = stream
        self._veil = None if psk is None else PnetStream(psk)
        self._unproved = MULTISTREAM
        """What has yet to come to show that the far end has our key."""
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
            self._buffer += piece if self._veil is None else await self._shown(self._veil, piece)
        size = len(self._buffer) if n is None else n
        data = bytes(self._buffer[:size])
        del self._buffer[:size]
        return data

    async def _shown(self, veil: PnetStream, piece: bytes) -> bytes | bytearray:
        waited, data = not veil.answered, veil.shown(piece)
        if veil.came.startswith(MULTISTREAM):  # it would wait for us, and we for the rest of its nonce
            raise IOException("the far end of the circuit has no pre-shared key")
        if waited and veil.answered:
            await self.write(b"")  # our nonce: js and rust callers say nothing before they have it
        if self._unproved:
            begun, self._unproved = self._unproved[: len(data)], self._unproved[len(data) :]
            if not data.startswith(begun):  # whatever length it seems to announce, nobody need wait for that
                raise IOException("the far end of the circuit has another pre-shared key")
        return data

    async def write(self, data: bytes) -> None:
        """Send all of it. Raises IOException once the circuit is gone."""
        try:
            await self._stream.send_all(data if self._veil is None else bytes(self._veil.hidden(data)))
        except TransportError as error:
            raise IOException("the circuit is gone") from error

    async def close(self) -> None:
        """Both ways, at once."""
        await self._stream.reset()

    def get_remote_address(self) -> tuple[str, int] | None:
        """There is none."""
        return None


class CircuitEnds:
    """The circuits that end here. `open_stream`: to a connected peer; `psk`: of a private network."""

    def __init__(
        self,
        swarm: BoundedSwarm,
        faults: Faults,
        open_stream: Callable[[PeerId, str], Awaitable[Stream]],
        psk: PresharedKey | None = None,
    ) -> None:
        self._swarm = swarm
        self._psk = psk
        self._faults = faults
        self._open_stream = open_stream
        self._relays: dict[PeerId, float] = {}
        """With whom we have a reservation, and until when (seconds of trio's clock)."""
        self._held: set[Any] = set()
        self._coming = 0
        """Circuits on their way: a handshake takes its time, and counts from its beginning."""

    def drop(self, relay: PeerId) -> None:
        """The last connection to a peer is gone: what it granted is over."""
        self._relays.pop(relay, None)

    async def granted_by(self, relay: PeerId, me: PeerId) -> Grant | None:
        """Ask a connected peer to relay for us, or to go on with that; None where it does not."""
        try:
            stream, answer = await self._asked(relay, CircuitMessage(kind=CircuitKind.RESERVE))
        except GossipError:
            return None
        await stream.close()
        if (reservation := answer.reservation) is None:
            return None
        try:
            if reservation.voucher is not None:  # nobody has to give one
                check_voucher(reservation.voucher, relay, me, reservation.expire)
        except RemoteError as error:
            self._faults.note("circuit", error)
            return None
        lasts_s = lasting(reservation.expire, time.time())
        self._relays.pop(relay, None)
        self._relays[relay] = trio.current_time() + lasts_s
        while len(self._relays) > MAX_RELAYS:  # of one that went just now, nobody would take it off
            del self._relays[next(iter(self._relays))]
        return Grant(address=circuit_address(relay, me), lasts_s=lasts_s)

    async def dial(self, relay: PeerId, target: PeerId) -> None:
        """A connection to `target` through `relay`. Raises TransportError."""
        if self._full():
            raise TransportError(f"{MAX_CIRCUITS} circuits end here already")
        with self._on_its_way():
            await self._add(await self._circuit(relay, target))

    async def probe(self, relay: PeerId, target: PeerId) -> None:
        """Whether `target` answers through `relay`. Raises TransportError."""
        muxed = await self._circuit(relay, target)
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
        raw = await receive_message(stream, RELAY_S)
        if raw is None:
            return
        try:
            asker = _asker_in(raw)
        except RemoteError as error:
            await _tell(stream, status_for(error))
            raise
        if self._relays.get(stream.remote, float("-inf")) < trio.current_time():
            self._faults.note("circuit_unasked")
            await _tell(stream, CircuitStatus.PERMISSION_DENIED)
        elif self._full():
            self._faults.note("circuit")
            await _tell(stream, CircuitStatus.RESOURCE_LIMIT_EXCEEDED)
        else:
            await self._take(stream, asker)

    async def _take(self, stream: Stream, asker: PeerId) -> None:
        with self._on_its_way():
            await _tell(stream, CircuitStatus.OK)
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

    async def _circuit(self, relay: PeerId, target: PeerId) -> Any:
        """Noise and yamux with `target` through `relay`. Raises TransportError, LocalError for what is no peer id."""
        if not is_peer(target):
            raise LocalError(f"{target}: not a peer id")
        stream, _ = await self._asked(relay, CircuitMessage(kind=CircuitKind.CONNECT, peer=target))
        return await self._upgraded(stream, target, dials=True)

    async def _asked(self, relay: PeerId, ask: CircuitMessage) -> tuple[Stream, CircuitMessage]:
        """A stream on which the relay has granted what was asked, and its words. Raises TransportError."""
        stream = await self._open_stream(relay, HOP_PROTOCOL)
        try:
            await send_message(stream, encode_hop(ask), RELAY_S)
            # A circuit takes it longer: it has to ask the far end first.
            answer = parse_hop(await receive_message(stream, 2 * RELAY_S) or b"")
            if answer.kind is not CircuitKind.STATUS:
                raise RemoteError(Reason.PROTOCOL, "it asks where it is asked")
            if answer.status != CircuitStatus.OK:
                raise TransportError(f"the relay {relay} refuses: {words_for(answer.status)}")
        except BaseException as error:
            with trio.CancelScope(shield=True):
                await stream.reset()
            if isinstance(error, RemoteError):
                raise TransportError(f"the relay {relay}: {error}") from error
            raise
        return stream, answer

    async def _upgraded(self, stream: Stream, peer: PeerId, *, dials: bool) -> Any:
        """Noise and yamux with `peer` over the stream, and with nobody else. Raises TransportError."""
        raw = RawConnection(CircuitSocket(stream, self._psk), dials)
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


def _asker_in(raw: bytes) -> PeerId:
    """Who wants a circuit to us, as a relay says. Raises RemoteError."""
    message = parse_stop(raw)
    if message.peer is None:
        raise RemoteError(Reason.UNKNOWN_KIND, "a far end is asked for something else than a circuit")
    return message.peer


async def _tell(stream: Stream, status: CircuitStatus) -> None:
    await send_message(stream, encode_stop(CircuitMessage(kind=CircuitKind.STATUS, status=status)), RELAY_S)
