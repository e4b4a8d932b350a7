"""What the transport calls, of a member's service: each call goes to the engine, or to the task that it is for."""

from typing import Final

import trio

from gossip.actions import Disconnect
from gossip.context import ServiceContext
from gossip.core.errors import RemoteError
from gossip.core.ids import PeerId
from gossip.discovery.dialler_task import Dialler
from gossip.membership.membership_sync_task import MembershipSync
from gossip.reachability.circuit import HOP_PROTOCOL
from gossip.reachability.dialback import DIALBACK_PROTOCOL
from gossip.reachability.dialback_task import DialBacks
from gossip.reachability.relay_task import Relay
from gossip.server import Server
from gossip.transport.base import Stream

LINGER_S: Final = 1.0
"""Four times what a roster of a hundred takes to pull over a link of 50 ms."""


class Handlers:
    """What a service is to its transport (`TransportHandlers`); its parts are the service's to make."""

    _context: ServiceContext
    _server: Server
    _dialler: Dialler
    _relay: Relay
    _dialbacks: DialBacks
    _membership_sync: MembershipSync | None

    async def handle_stream(self, protocol: str, stream: Stream) -> None:
        """A peer opened a stream."""
        if protocol == DIALBACK_PROTOCOL:
            await self._dialbacks.handle_stream(stream)
        elif protocol == HOP_PROTOCOL:
            await self._relay.handle_stream(stream)
        else:
            await self._server.handle_stream(protocol, stream)

    def handle_message(self, forwarder: PeerId, data: bytes) -> bool:
        """A broadcast arrived."""
        passed_on = self._context.engine.on_message(forwarder, data, trio.current_time())
        self._context.perform()
        return passed_on

    def peer_connected(self, peer: PeerId) -> None:
        """A connection is up: greet, unless the peer is banned."""
        if not self._context.engine.peer_connected(peer, trio.current_time()):
            self._context.perform()
            return
        self._dialler.connected(peer)
        if self._membership_sync is not None:
            self._membership_sync.peer_connected(peer)

    def peer_lost(self, peer: PeerId) -> None:
        """The last connection is gone, and what it was good for."""
        self._relay.circuits.drop(peer)
        self._context.relayed.pop(peer, None)
        self._context.engine.peer_lost(peer, trio.current_time())
        if self._membership_sync is not None:
            self._membership_sync.peer_lost(peer)
        self._context.perform()

    async def _disconnect(self, action: Disconnect) -> None:
        """Close all connections to a peer; a bootstrap node has yet to hear what we know, and we what it does."""
        if not action.hurried and self._membership_sync is not None:
            await trio.sleep(LINGER_S)
            if action.peer in self._context.engine.neighbours:
                return
        await self._context.transport.disconnect(action.peer)

    def keeps(self, peer: PeerId) -> bool:
        """Neighbours stay connected, and who listens to us, whoever else would like a place."""
        return self._context.engine.serves(peer)

    def offended(self, peer: PeerId, error: RemoteError) -> None:
        """The transport saw an offence that is the peer's own: charged like those that we see."""
        self._context.offence(peer, error)

    def caller_refused(self, caller: str, why: str) -> None:
        """The swarm is private, and somebody is not of it."""
        self._context.warn(f"refused {caller}: {why}")
