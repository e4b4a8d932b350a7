"""A TCP connection as a stream of bytes, before any handshake: a relay carries another's handshake over it."""

import trio

from gossip.core.ids import PeerId
from gossip.transport.base import TransportError
from gossip.transport.wire_bytes import WireBytes


class BareStream:
    """A `gossip.transport.base.Stream` to who should listen there. Nobody has proved a key: `remote` is a name."""

    def __init__(self, socket: trio.SocketStream, remote: PeerId, wire: WireBytes) -> None:
        self._socket = socket
        self._remote = remote
        self._wire = wire

    @property
    def remote(self) -> PeerId:
        """Return who should be at the other end."""
        return self._remote

    @property
    def pending(self) -> int:
        """Return 0: bytes are handed over as they come."""
        return 0

    async def send_all(self, data: bytes | memoryview) -> None:
        """Send all of `data`. Raises TransportError."""
        try:
            await self._socket.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise TransportError(f"the connection to {self._remote} is gone") from error
        self._wire.sent += len(data)

    async def receive_some(self, max_bytes: int) -> bytes:
        """Return at most `max_bytes` bytes; b"" at the end. Raises TransportError."""
        try:
            data = bytes(await self._socket.receive_some(max_bytes))
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise TransportError(f"the connection to {self._remote} is gone") from error
        self._wire.received += len(data)
        return data

    async def close(self) -> None:
        """Close the connection."""
        await trio.aclose_forcefully(self._socket)

    async def reset(self) -> None:
        """Close the connection at once."""
        with trio.CancelScope(shield=True):
            await trio.aclose_forcefully(self._socket)
