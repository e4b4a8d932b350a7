"""A circuit (reachability/circuit_ends_task.py) as libp2p has its connections.

What a relay carries is taken for a socket: where the network is private its pre-shared key hides all of it, as go and
js have it; Noise between the two ends proves both keys, and yamux over it makes streams, heartbeats and the end of a
dead one.
"""

from typing import Any, Final

import trio
from libp2p.io.exceptions import IOException
from libp2p.network.connection.raw_connection import RawConnection

from gossip.core.ids import PeerId
from gossip.transport.base import Stream, TransportError
from gossip.transport.libp2p.host import BoundedSwarm
from gossip.transport.libp2p.libp2p_errors import translated
from gossip.transport.libp2p.multiaddrs import parse_peer
from gossip.transport.libp2p.tcp import MULTISTREAM
from gossip.transport.pnet import PnetStream, PresharedKey

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


class SwarmCircuits:
    """The port of libp2p's swarm. `psk`: of a private network."""

    def __init__(self, swarm: BoundedSwarm, psk: PresharedKey | None = None) -> None:
        self._swarm = swarm
        self.psk = psk

    async def upgraded(self, stream: Stream, peer: PeerId, *, dials: bool) -> Any:
        """Return yamux over Noise with `peer` over the stream, and with nobody else. Raises TransportError."""
        raw = RawConnection(CircuitSocket(stream, self.psk), dials)
        with translated(f"a circuit with {peer}"):
            secured = await self._swarm.upgrader.upgrade_security(raw, dials, parse_peer(peer) if dials else None)
            if str(secured.get_remote_peer()) != peer:
                raise TransportError("another peer answers than the relay says")
            return await self._swarm.upgrader.upgrade_connection(secured, secured.get_remote_peer())

    async def add(self, connection: Any) -> None:
        """Add it to the swarm's connections. Raises TransportError."""
        with translated("a circuit"):
            await self._swarm.add_conn(connection)

    async def add_called(self, connection: Any) -> None:
        """Add one that came in where we take callers. Raises TransportError."""
        with translated("a caller"):
            await self._swarm.add_conn(connection, "inbound")

    async def discard(self, connection: Any) -> None:
        """Close one that was not added."""
        await connection.secured_conn.close()

    def closed(self, connection: Any) -> trio.Event:
        """Return what is set once it is over."""
        event: trio.Event = connection.event_closed
        return event


async def add_over(port: SwarmCircuits, stream: Stream, *, dials: bool) -> None:
    """Connect over a stream of bytes that is no circuit, as over TCP: with who dialled, or whom we dial. A stream that
    we dialled is reset where that fails. Raises TransportError."""
    try:
        connection = await port.upgraded(stream, stream.remote, dials=dials)
        await (port.add(connection) if dials else port.add_called(connection))
    except BaseException:
        if dials:
            with trio.CancelScope(shield=True):
                await stream.reset()
        raise
