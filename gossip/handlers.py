"""The calls that the transport makes to a member's service: each goes to the engine, or to the task that it is for."""

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
"""Seconds. Four times what pulling a roster of a hundred members takes over a link of 50 ms."""


class Handlers:
    """The service's side towards its transport (`TransportHandlers`); the service creates the parts."""

    _context: ServiceContext
    _server: Server
    _dialler: Dialler
    _relay: Relay
    _dialbacks: DialBacks
    _membership_sync: MembershipSync | None

    async def handle_stream(self, protocol: str, stream: Stream) -> None:
        """Serve a stream that a peer opened."""
        if protocol == DIALBACK_PROTOCOL:
            await self._dialbacks.handle_stream(stream)
        elif protocol == HOP_PROTOCOL:
            await self._relay.handle_stream(stream)
        else:
            await self._server.handle_stream(protocol, stream)

    def handle_message(self, forwarder: PeerId, data: bytes) -> bool:
        """Handle a broadcast; return whether to pass it on."""
        passed_on = self._context.engine.on_message(forwarder, data, trio.current_time())
        self._context.perform()
        return passed_on

    def peer_connected(self, peer: PeerId) -> None:
        """Greet a newly connected peer, unless it is banned."""
        if not self._context.engine.peer_connected(peer, trio.current_time()):
            self._context.perform()
            return
        self._dialler.connected(peer)
        if self._membership_sync is not None:
            self._membership_sync.peer_connected(peer)

    def peer_lost(self, peer: PeerId) -> None:
        """Drop what depended on a peer's last connection."""
        self._relay.circuits.drop(peer)
        self._context.relayed.pop(peer, None)
        self._context.engine.peer_lost(peer, trio.current_time())
        if self._membership_sync is not None:
            self._membership_sync.peer_lost(peer)
        self._context.perform()

    async def _disconnect(self, action: Disconnect) -> None:
        """Close all connections to a peer, but for the relay that we depend on. A bootstrap node first exchanges
        membership news with us."""
        if self._context.config.via.endswith(f"/p2p/{action.peer}"):
            return
        if not action.hurried and self._membership_sync is not None:
            await trio.sleep(LINGER_S)
            if action.peer in self._context.engine.partners:
                return
        await self._context.transport.disconnect(action.peer)

    def uninterested(self, data: bytes) -> frozenset[PeerId]:
        """Return the connected peers to which a broadcast is of no use."""
        return self._context.engine.uninterested(data)

    def keeps(self, peer: PeerId) -> bool:
        """Return whether a connection is kept when somebody else needs its place: to those whom we serve."""
        return self._context.engine.serves(peer)

    def offended(self, peer: PeerId, error: RemoteError) -> None:
        """Charge an offence of the peer's own that the transport saw, like those that we see."""
        self._context.offence(peer, error)

    def caller_refused(self, caller: str, why: str) -> None:
        """Warn of a caller that is no member of the private swarm."""
        self._context.warn(f"refused {caller}: {why}")
