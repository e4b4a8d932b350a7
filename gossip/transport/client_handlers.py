"""The transport's handlers of a program that only asks: it serves no stream and passes no message on."""

from gossip.core.errors import RemoteError
from gossip.core.ids import PeerId
from gossip.transport.base import Stream

__all__ = ["ClientHandlers"]


class ClientHandlers:
    """Handlers of a client. `keeps_peers`: whether a connection stays when places are short."""

    def __init__(self, *, keeps_peers: bool) -> None:
        self._keeps_peers = keeps_peers

    async def handle_stream(self, protocol: str, stream: Stream) -> None:
        """Reset it: a client serves nothing."""
        await stream.reset()

    def handle_message(self, forwarder: PeerId, data: bytes) -> bool:
        """Drop it."""
        return False

    def peer_connected(self, peer: PeerId) -> None:
        """Ignore it: who dialled it knows."""

    def peer_lost(self, peer: PeerId) -> None:
        """Ignore it: the next question to it fails."""

    def keeps(self, peer: PeerId) -> bool:
        """The same for every peer."""
        return self._keeps_peers

    def offended(self, peer: PeerId, error: RemoteError) -> None:
        """Ignore it: the program ends soon, and keeps no scores."""

    def caller_refused(self, caller: str, why: str) -> None:
        """Ignore it: who calls a client has taken it for a node."""
