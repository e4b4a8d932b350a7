"""The libp2p host, assembled from parts that trust no peer and do nothing unasked.

`new_host` is not used: it brings four securities, three of them open to plain text (trap 9), a resource manager whose
limits shrink (trap 14), and a port shared with others. What is overridden below is named with its trap; identify and
ping are served, since go and js peers expect them, but never sent.
"""

from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final

import trio
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.crypto.x25519 import create_new_key_pair as create_new_noise_key_pair
from libp2p.host.basic_host import BasicHost
from libp2p.host.ping import ID as PING_ID
from libp2p.identity.identify.identify import ID as IDENTIFY_ID
from libp2p.identity.identify.identify import identify_handler_for
from libp2p.network.auto_connector import AutoConnector
from libp2p.network.config import ConnectionConfig, RetryConfig
from libp2p.network.connection.raw_connection import RawConnection
from libp2p.network.exceptions import SwarmException
from libp2p.network.swarm import Swarm
from libp2p.peer.id import ID
from libp2p.peer.peerstore import PeerStore, PeerStoreError
from libp2p.rcmgr import Direction
from libp2p.security.noise.transport import PROTOCOL_ID as NOISE_ID
from libp2p.security.noise.transport import Transport as NoiseTransport
from libp2p.stream_muxer.yamux.yamux import PROTOCOL_ID as YAMUX_ID
from libp2p.transport.upgrader import TransportUpgrader

from gossip.core.ids import PeerId
from gossip.core.limits import PAUSE_PROTOCOL, SHIFT_PROTOCOL, STATISTICS_PROTOCOL
from gossip.core.rate_limit import KeyedTokenBucket
from gossip.reachability.circuit import HOP_PROTOCOL, STOP_PROTOCOL
from gossip.transport.connection_limits import (
    CallerNetworks,
    ConnectionBounds,
    ConnectionSlots,
    Handshakes,
    Networks,
)
from gossip.transport.handshake_admission import AdmissionDeniedError, HandshakeAdmission
from gossip.transport.libp2p.data_link import MAGIC, DataLink
from gossip.transport.libp2p.fault_guard import Faults
from gossip.transport.libp2p.kept_ports import KeptPorts
from gossip.transport.libp2p.libp2p_errors import caused_by
from gossip.transport.libp2p.member_security import guarded_upgrader, host_of, readmit
from gossip.transport.libp2p.ping import PingAnswers
from gossip.transport.libp2p.tcp import MULTISTREAM, BufferedTcpStream, OwnPortTcp
from gossip.transport.libp2p.yamux import MuxSettings, SteadyMuxer, SteadyYamux
from gossip.transport.pnet import PresharedKey
from gossip.transport.wire_bytes import WireBytes

PROTOCOL: Final = "/p2ptrain/1"
"""Streams of this protocol, and of those below it, go to the handlers; the rest is libp2p's own."""

OTHER_PROTOCOLS: Final = (HOP_PROTOCOL, STOP_PROTOCOL, PAUSE_PROTOCOL, SHIFT_PROTOCOL, STATISTICS_PROTOCOL)
"""Go to the handlers as well. Identify does not tell of them: strangers would ask for what neighbours alone get."""

BURST_S: Final = 4.0
"""Seconds' worth of handshakes that may begin at once: a small swarm that is started together."""

StreamHandler = Callable[[str, Any], Awaitable[None]]


class _IdleConnector(AutoConnector):  # type: ignore[misc]
    """Dials nobody and remembers nobody.

    Trap 14: watermarks of 0 do not stop the stock one, which aims at half the high watermark (auto_connector.py:300).
    """

    async def maybe_connect(self) -> None:
        """Nothing to do."""

    def record_disconnect(self, peer_id: ID) -> None:
        """Kept for ever by the stock class, for each peer that ever left."""


class BoundedSwarm(Swarm):  # type: ignore[misc]
    """A swarm that dials only when told, and bounds connections by those that live."""

    def __init__(
        self,
        peer_id: ID,
        upgrader: TransportUpgrader,
        config: ConnectionConfig,
        bounds: ConnectionBounds,
        faults: Faults,
        handshake_admission: HandshakeAdmission,
        psk: PresharedKey | None,
        kept_ports: KeptPorts,
    ) -> None:
        peerstore = PeerStore()
        retry_never = RetryConfig(max_retries=0)
        self.wire = WireBytes()
        self._tcp = OwnPortTcp(psk, self.wire, kept_ports)
        super().__init__(peer_id, peerstore, upgrader, [self._tcp], retry_never, config)
        self._handshake_admission = handshake_admission
        self._bounds = bounds
        self._faults = faults
        self._networks = Networks(bounds.unbounded_networks)
        self._callers = CallerNetworks(bounds.allow)
        self._handshakes: Handshakes[trio.CancelScope] = Handshakes(bounds.handshakes, bounds.handshakes_of_network)
        self._pace = KeyedTokenBucket(burst=BURST_S * bounds.handshakes_per_s, per_s=bounds.handshakes_per_s)
        self._inbound: ConnectionSlots[Any] = ConnectionSlots(bounds.inbound, bounds.of_network, self._kept)
        self._dialled: ConnectionSlots[Any] = ConnectionSlots(bounds.dialled, bounds.dialled, self._kept)
        self._joining: Counter[ID] = Counter()
        self.on_peer: Callable[[PeerId, bool], None] = lambda peer, up: None
        self.on_data: Callable[[BufferedTcpStream], Awaitable[DataLink | None]] | None = None
        self.keeps: Callable[[PeerId], bool] = lambda peer: True

    def _kept(self, peer: PeerId) -> bool:
        return self.keeps(peer)

    def _init_connection_management(self) -> None:
        super()._init_connection_management()
        self.auto_connector = _IdleConnector(swarm=self)
        self.notifees.clear()  # the tag store's: a table of every peer ever met, for a pruner that never prunes

    async def dial_peer(self, peer_id: ID) -> list[Any]:
        """Refused: libp2p's parts would dial whatever address a peer once claimed (traps 8 and 14)."""
        raise SwarmException(f"not connected to {peer_id}")

    async def probe(self, address: Any, peer_id: ID) -> str | None:
        """A whole handshake with `peer_id` at `address`, and the end: what the far end takes for a short visit. The
        network that it was had with."""
        raw = await self._tcp.dial(address)
        network = self._networks.named(host_of(raw))
        try:
            secured = await self.upgrader.upgrade_security(raw, True, peer_id)
            await self.upgrader.upgrade_connection(secured, peer_id)
        finally:
            with trio.CancelScope(shield=True), suppress(Exception):
                await raw.close()
        return network

    async def _handle_inbound_connection(self, read_write_closer: Any, maddr: Any) -> None:
        """Upgrade, then hold the socket while the connection lives.

        Stock code holds it, and one of 250 tokens, until shutdown (trap 3: swarm.py:2060).
        """
        host = (read_write_closer.get_remote_address() or (None,))[0]
        if host not in self._callers:
            self._faults.note("refused_address")
            return  # before a byte is read
        network = self._networks.of(host)
        refusal = self._inbound.refusal(network)
        if refusal is not None:
            self._faults.note(refusal)
            return  # returning closes the socket
        muxed = await self._upgraded(read_write_closer, maddr, network)
        if isinstance(muxed, DataLink):
            await muxed.closed.wait()
        if not isinstance(muxed, SteadyYamux):
            return
        try:
            # Only now: a bare socket must not cost anybody a place.
            await self._make_room(self._inbound.take(muxed, PeerId(str(muxed.peer_id)), network))
            await muxed.event_closed.wait()
        finally:
            self._inbound.leave(muxed)

    async def _make_room(self, muxed: SteadyYamux | None) -> None:
        if muxed is not None:
            self._faults.note("made_room")
            with suppress(Exception):
                await muxed.secured_conn.close()

    async def _upgraded(self, read_write_closer: Any, maddr: Any, network: str | None) -> SteadyYamux | DataLink | None:
        with trio.CancelScope() as scope:
            loser = self._handshakes.begin(scope, network)
            if loser is not None:
                self._faults.note("handshake_cut_short")
                loser.cancel()
            try:
                with trio.fail_after(self._bounds.handshake_s):
                    await self._check_key(read_write_closer)
                    await self._turn()
                    if self.on_data is not None and await read_write_closer.begins_with(MAGIC[:1]):
                        return await self.on_data(read_write_closer)
                    raw = RawConnection(read_write_closer, False)
                    muxed: SteadyYamux = await self.upgrade_inbound_raw_conn(raw, maddr)
                return muxed
            except trio.TooSlowError:
                self._faults.note("handshake_timeout")
            except Exception as error:  # garbage, no common security, a bad signature, a limit: all the remote's
                refused = caused_by(error, AdmissionDeniedError)
                if refused is None or not refused.kind:
                    self._faults.note("handshake", error)
            finally:
                self._handshakes.end(scope)
        return None

    async def _check_key(self, stream: BufferedTcpStream) -> None:
        """That the caller has the pre-shared key, if there is one: found out before it costs others a turn."""
        if stream.veil is not None and await stream.is_foreign(MULTISTREAM, MAGIC):
            why, now = "it has not our pre-shared key", trio.current_time()
            raise self._handshake_admission.refusal("refused_psk", why, None, host_of(stream), now)

    async def _turn(self) -> None:
        """Wait until another handshake may begin. The socket that asks at the right moment gets it: one that has
        waited long, as those of a flood do, has no priority over one that has just come."""
        while not self._pace.take("", trio.current_time()):  # noqa: ASYNC110  # nothing but time brings a token
            await trio.sleep(1 / self._bounds.handshakes_per_s)

    async def add_conn(self, muxed_conn: Any, direction: str = "unknown") -> Any:
        """Register a connection, at most `of_peer` a peer. Raises SwarmException, AdmissionDeniedError."""
        peer_id = muxed_conn.peer_id
        if self.count(peer_id) + self._joining[peer_id] >= self._bounds.of_peer:
            self._faults.note("too_many_connections_of_peer")
            await muxed_conn.close()
            raise SwarmException(f"enough connections to {peer_id}")
        await self._readmit(muxed_conn)
        was_new = not self.count(peer_id)
        self._joining[peer_id] += 1
        try:
            connection = await super().add_conn(muxed_conn, direction)
        finally:
            self._joining[peer_id] -= 1
            self._joining += Counter()  # drops the zeros
        # Stock code forgets a connection in an `async` close: one that is cancelled there, as by a limit of time, would
        # stay registered for ever, and its peer could neither be dialled nor cut any more.
        muxed_conn.at_end = partial(self._forget, connection)
        if muxed_conn.over or connection.is_closed:
            self._forget(connection)
            return connection  # as one that ends a moment later
        if direction == "outbound":
            loser = self._dialled.take(muxed_conn, PeerId(str(peer_id)), None)
            if loser is not muxed_conn:  # what we have just dialled ourselves stays
                await self._make_room(loser)
        if was_new and self.count(peer_id):
            self.on_peer(PeerId(str(peer_id)), True)
        await self._readmit(muxed_conn)  # cut by its name a moment ago, it was not registered yet
        return connection

    def _forget(self, connection: Any) -> None:
        """Remove a connection that has ended, if it is still registered."""
        if connection in self.connections.get(connection.muxed_conn.peer_id, ()):
            self.remove_conn(connection)

    async def _readmit(self, muxed: SteadyYamux) -> None:
        """Close a connection with one that is no member any more. Raises AdmissionDeniedError."""
        try:
            readmit(self._handshake_admission, muxed.secured_conn)
        except AdmissionDeniedError:
            with trio.CancelScope(shield=True):
                await muxed.close()
            raise

    def remove_conn(self, swarm_conn: Any) -> None:
        """Forget a connection; with the last one, all that libp2p remembers of the peer."""
        peer_id = swarm_conn.muxed_conn.peer_id
        before = self.count(peer_id)
        self._dialled.leave(swarm_conn.muxed_conn)
        super().remove_conn(swarm_conn)
        if before and not self.count(peer_id):
            with suppress(PeerStoreError):  # raised when nothing was remembered
                self.peerstore.clear_peerdata(peer_id)
            self.on_peer(PeerId(str(peer_id)), False)

    async def _notify(self, method: str, *args: Any) -> None:
        """Tell listeners, but of no stream: none of libp2p's own does anything then, and stock code starts a task for
        each (swarm.py:3169)."""
        if method not in ("opened_stream", "closed_stream"):
            await super()._notify(method, *args)

    def used(self, muxed: Any) -> None:
        """A stream of ours goes over this connection: others are let go before it."""
        self._inbound.used(muxed)
        self._dialled.used(muxed)

    def loose(self) -> list[Any]:
        """The connections of those that are not kept: what they pin may cost them their place."""
        return [
            connection.muxed_conn
            for peer_id, connections in self.connections.items()
            if not self.keeps(PeerId(str(peer_id)))
            for connection in connections
        ]

    def count(self, peer_id: ID) -> int:
        """Connections registered for a peer."""
        return len(self.connections.get(peer_id, ()))

    def host_of(self, peer_id: ID) -> str | None:
        """The IP address at the far end of a connection to a peer."""
        for connection in self.connections.get(peer_id, ()):
            host = connection.muxed_conn.remote_host
            if host is not None:
                return str(host)
        return None

    def network_of(self, peer_id: ID) -> str | None:
        """The network at the far end of a connection to a peer; "" for one of our own."""
        hosts = (host_of(connection.muxed_conn.secured_conn) for connection in self.connections.get(peer_id, ()))
        return next((it for host in hosts if (it := self._networks.named(host)) is not None), None)

    def dialled_by(self, peer_id: ID) -> bool:
        """Whether any of the connections registered for a peer came in where we listen."""
        connections = self.connections.get(peer_id, ())
        return any(connection.direction == Direction.INBOUND for connection in connections)


class _Handlers(dict[Any, Any]):
    """Multistream's table of handlers, in which every protocol of ours is present."""

    serve: StreamHandler

    def __contains__(self, protocol: object) -> bool:
        ours = isinstance(protocol, str) and f"{protocol}/".startswith(f"{PROTOCOL}/")
        return ours or protocol in OTHER_PROTOCOLS or super().__contains__(protocol)

    def __missing__(self, protocol: str) -> Callable[[Any], Awaitable[None]]:
        async def handler(net_stream: Any) -> None:
            await self.serve(protocol, net_stream)

        return handler


class GuardedHost(BasicHost):  # type: ignore[misc]
    """A host in which an inbound stream can hurt nothing but itself."""

    def __init__(self, swarm: BoundedSwarm, serve: StreamHandler, faults: Faults) -> None:
        self._fixed_addrs: list[Any] = []
        protocols = OrderedDict({IDENTIFY_ID: identify_handler_for(self), PING_ID: PingAnswers().serve})
        super().__init__(swarm, default_protocols=protocols, disable_identify_address_discovery=True)
        handlers = _Handlers(self.multiselect.handlers)
        handlers.serve = serve
        self.multiselect.handlers = handlers
        self._faults = faults

    def fix_addrs(self) -> None:
        """Once listening: pubsub asks for the addresses with every frame it makes, at 0.4 ms a time."""
        self._fixed_addrs = super().get_addrs()

    def get_addrs(self) -> list[Any]:
        """What we listen on, as identify tells peers."""
        return list(self._fixed_addrs or super().get_addrs())

    async def _swarm_stream_handler(self, net_stream: Any) -> None:
        """Trap 1 (basic_host.py:1480): bytes of a remote's choice can raise anything here."""
        try:
            await super()._swarm_stream_handler(net_stream)
        except Exception as error:
            self._faults.note("stream", error)
            with trio.CancelScope(shield=True):
                await net_stream.reset()

    def _schedule_identify(self, peer_id: ID, *, reason: str) -> None:
        """Never ask: the answer would fill the peerstore with a stranger's claims, from a system task."""

    async def _push_identify_to_all_peers(self) -> None:
        """Never push: our addresses travel in signed records of our own."""


def build_host(
    seed: bytes,
    serve: StreamHandler,
    settings: MuxSettings,
    bounds: ConnectionBounds,
    handshake_admission: HandshakeAdmission,
    psk: PresharedKey | None,
    kept_ports: KeptPorts,
) -> GuardedHost:
    """A host for the Ed25519 key of `seed` (32 bytes): Noise alone (trap 9), with the door behind it, yamux alone, TCP
    alone, behind `psk` if there is one."""
    # libp2p's own limits are out of reach: at them it would refuse, or prune, whomever it likes.
    total = 2 * (bounds.inbound + bounds.dialled + bounds.handshakes)
    config = ConnectionConfig(
        max_connections=total,
        max_connections_per_peer=bounds.of_peer + 1,
        min_connections=0,
        low_watermark=0,
        high_watermark=total,
        inbound_upgrade_timeout=bounds.handshake_s + 1,
        outbound_upgrade_timeout=bounds.handshake_s,
    )
    key_pair = create_new_key_pair(seed)
    noise = NoiseTransport(key_pair, noise_privkey=create_new_noise_key_pair().private_key)
    upgrader = guarded_upgrader(noise, NOISE_ID, {YAMUX_ID: SteadyYamux}, handshake_admission)
    upgrader.muxer_multistream = SteadyMuxer(YAMUX_ID, settings)
    swarm = BoundedSwarm(
        ID.from_pubkey(key_pair.public_key),
        upgrader,
        config,
        bounds,
        settings.faults,
        handshake_admission,
        psk,
        kept_ports,
    )
    swarm.peerstore.add_key_pair(swarm.get_peer_id(), key_pair)
    return GuardedHost(swarm, serve, settings.faults)
