"""The transport over real networks: TCP, Noise, yamux and gossipsub, by py-libp2p 0.8.1.

This file only joins the parts and owns their life: `libp2p_host` (host and connections), `libp2p_pubsub` (broadcast),
`libp2p_yamux` and `libp2p_outbox` (streams), `libp2p_tcp` (sockets), `libp2p_guard` (faults of remotes),
`libp2p_errors` (words). Each says which trap of the library it defuses; tests/integration/test_libp2p_traps.py
reproduces those on the stock library, so that a new release shows what changed.

Life: the services run in tasks shielded from the caller's cancellation, so that on cancellation connections are
closed properly (a goodbye, sockets freed) within `SHUTDOWN_S`; only then are the services stopped.
"""

import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import libp2p.network.connection.swarm_connection as swarm_connection
import trio
from libp2p.protocol_muxer.multiselect_communicator import MultiselectCommunicator

from gossip.core.backoff import peer_in
from gossip.core.errors import GossipError, LocalError
from gossip.core.ids import PeerId
from gossip.reachability.circuit import STOP_PROTOCOL
from gossip.reachability.circuit_ends_task import CircuitEnds
from gossip.reachability.relay import MAX_CIRCUITS, MAX_CIRCUITS_OF_PEER, parse_circuit
from gossip.transport.base import Admission, Grant, Stream, TransportError, TransportHandlers
from gossip.transport.connection_limits import ConnectionBounds
from gossip.transport.drop_reasons import counted
from gossip.transport.handshake_admission import HandshakeAdmission
from gossip.transport.libp2p.bare_stream import BareStream
from gossip.transport.libp2p.circuit_socket import SwarmCircuits, add_over
from gossip.transport.libp2p.data_channels import PROTOCOL as DATA_PROTOCOL
from gossip.transport.libp2p.data_channels import Channels, Way
from gossip.transport.libp2p.fault_guard import Faults, GuardedManager
from gossip.transport.libp2p.host import BoundedSwarm, build_host
from gossip.transport.libp2p.kept_ports import KeptPorts
from gossip.transport.libp2p.libp2p_errors import translated, unwrapped
from gossip.transport.libp2p.libp2p_stream import Libp2pStream
from gossip.transport.libp2p.multiaddrs import parse_dial, parse_listen, parse_peer
from gossip.transport.libp2p.own_addresses import OwnAddresses
from gossip.transport.libp2p.pubsub import MAX_MESSAGE_BYTES, GuardedPubsub
from gossip.transport.libp2p.tcp import host_and_port
from gossip.transport.libp2p.unread_bytes import watch_unread
from gossip.transport.libp2p.yamux import MAX_STREAMS, MuxSettings
from gossip.transport.pnet import PresharedKey
from gossip.transport.spool.spool_ends import SPOOL, SpoolEnds, ThreadOffload
from gossip.transport.wire_bytes import WireBytes

SHUTDOWN_S: Final = 1.0
"""For goodbyes at the end; sockets that are not closed by then are closed hard. Cancelling takes less than 2 s."""

SEED_BYTES: Final = 32

# libp2p sets its logger to WARNING without a handler, so Python would print what remotes do to stderr. One of its
# modules logs through the root logger (swarm_connection.py:85), which would also configure the root as a side effect.
logging.getLogger("libp2p").addHandler(logging.NullHandler())
swarm_connection.logging = logging.getLogger("libp2p.network.connection")


@dataclass(frozen=True, kw_only=True)
class Libp2pConfig:
    """How a node attaches to the network."""

    swarm: str = "p2ptrain"
    """Names the gossipsub topic."""
    listen: tuple[str, ...] = ("/ip4/127.0.0.1/tcp/0",)
    """Multiaddrs to listen on; port 0 is any free one."""
    ports_file: Path | None = None
    """Where the port that was found for a port 0 is kept, to be tried first at the next start; None: nowhere."""
    announce: tuple[str, ...] = ()
    """What to hand out as our addresses instead of those we listen on (behind a port forwarding)."""
    dial_timeout_s: float = 15.0
    """For TCP and the handshake together: a lost SYN is repeated after 1, 3 and 7 s."""
    open_timeout_s: float = 10.0
    """For one round trip; libp2p's negotiation default."""
    heartbeat_s: float = 5.0
    missed_beats: int = 4
    """A connection that is silent for about heartbeat_s * missed_beats = 20 s is closed: a Wi-Fi roam takes less."""
    stall_s: float = 120.0
    """How long a sender waits for a reader that does not read: a checkpoint or a GPU step takes less."""
    data_connections: bool = True
    """Whether streams for bulk go over TCP connections of their own, with peers that do so too (libp2p_channels)."""
    bounds: ConnectionBounds = field(default_factory=ConnectionBounds)
    """How many connections, by peer, by network and in all."""
    via: str = ""
    """The address of a relay, the only peer that is dialled: all others are reached through it. Empty: no relay."""
    spool: Path | None = None
    """A folder that this machine shares with others. With a `via` in it, that is where the relay is reached; without
    `via` it is served: nodes come by it as they do by listening addresses."""

    def __post_init__(self) -> None:
        """Raises LocalError for what cannot work."""
        if not self.swarm:
            raise LocalError("a swarm needs a name")
        for address in self.listen:
            parse_listen(address)
        if self.via:
            _relay_in(self.via)


class Libp2pTransport:
    """A `gossip.transport.base.Transport`. `seed`: the 32 bytes of the node's Ed25519 key. `admission`: who may come
    in; None: everybody. `psk`: of a private network of libp2p's."""

    def __init__(
        self,
        config: Libp2pConfig,
        seed: bytes,
        *,
        admission: Admission | None = None,
        psk: PresharedKey | None = None,
    ) -> None:
        if len(seed) != SEED_BYTES:
            raise LocalError(f"an Ed25519 seed has {SEED_BYTES} bytes, not {len(seed)}")
        self._config = config
        self._faults = Faults()
        settings = MuxSettings(
            heartbeat_s=config.heartbeat_s,
            missed_beats=config.missed_beats,
            stall_s=config.stall_s,
            faults=self._faults,
            keeps=lambda peer: self._swarm.keeps(peer),
        )
        self._handshake_admission = HandshakeAdmission(admission, self._faults.note)
        kept_ports = KeptPorts(config.ports_file)
        self._host = build_host(seed, self._serve, settings, config.bounds, self._handshake_admission, psk, kept_ports)
        self._swarm: BoundedSwarm = self._host.get_network()
        self._peer_id = PeerId(str(self._host.get_id()))
        self._dialling: dict[PeerId, trio.Lock] = {}
        self._addresses: OwnAddresses | None = None
        self._handlers: TransportHandlers | None = None
        self._channels = Channels(
            me=self._peer_id,
            faults=self._faults,
            open_stream=self._open_anchor,
            serve=self._serve_stream,
            keeps=lambda peer: self._swarm.keeps(peer),
            spawn=self._spawn,
            wire=self._swarm.wire,
            psk=psk,
        )
        self._via = _relay_in(config.via) if config.via else None
        self._spool = None
        if config.spool is not None:
            self._spool = SpoolEnds(
                config.spool, self._peer_id, spawn=self._spawn, wire=self._swarm.wire, offload=ThreadOffload()
            )
        self._port = SwarmCircuits(self._swarm, psk)
        self._circuits = CircuitEnds(
            self._port,
            self._faults.note,
            self._open_libp2p,
            most=config.bounds.dialled if config.via else MAX_CIRCUITS,
            of_relay=config.bounds.dialled if config.via else MAX_CIRCUITS_OF_PEER,
        )
        self._pubsub: GuardedPubsub | None = None
        self._nursery: trio.Nursery | None = None

    @property
    def peer_id(self) -> PeerId:
        """Our own name, that of the identity key."""
        return self._peer_id

    @property
    def addresses(self) -> Sequence[str]:
        """Multiaddrs with `/p2p/<peer id>`, as the interfaces are now; known once `run` has started."""
        if self._config.announce:
            return tuple(f"{address.partition('/p2p/')[0]}/p2p/{self._peer_id}" for address in self._config.announce)
        return () if self._addresses is None else self._addresses.current()

    @property
    def peers(self) -> frozenset[PeerId]:
        """Peers with at least one live connection."""
        return frozenset(PeerId(str(peer)) for peer in self._swarm.connections)

    def dialled_us(self, peer: PeerId) -> bool:
        """Whether a live connection to `peer` is one that it dialled."""
        return self._swarm.dialled_by(parse_peer(peer))

    def network_of(self, peer: PeerId) -> str | None:
        """The network that a direct connection to `peer` leads to; "" for one of our own."""
        return self._swarm.network_of(parse_peer(peer))

    def address_at(self, peer: PeerId, port: int) -> str | None:
        """The multiaddr of this port on the host that a direct connection to `peer` leads to."""
        host = self._swarm.host_of(parse_peer(peer))
        return None if host is None else f"/{'ip6' if ':' in host else 'ip4'}/{host}/tcp/{port}/p2p/{peer}"

    @property
    def faults(self) -> Mapping[str, int]:
        """What remotes did that was caught or refused: kind -> times."""
        return self._faults.counts

    @property
    def drops(self) -> Mapping[str, int]:
        """The same, of every kind that there is. For metrics."""
        return counted(self._faults.counts)

    @property
    def wire(self) -> WireBytes:
        """All bytes written to our sockets and read from them, of circuits through a relay once."""
        return self._swarm.wire

    async def run(
        self, handlers: TransportHandlers, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Listen and serve until cancelled; once only. Raises LocalError when it cannot listen."""
        assert self._handlers is None, "a transport runs once"
        self._handlers = handlers
        self._swarm.on_peer = self._peer_changed
        self._swarm.keeps = handlers.keeps
        self._handshake_admission.tell = lambda caller, why: handlers.caller_refused(caller, why)
        if self._config.data_connections:
            self._swarm.on_data = self._channels.admit
        topic = f"/p2ptrain/1/{self._config.swarm}"
        self._pubsub = GuardedPubsub(self._host, topic, handlers, self._faults)
        with unwrapped():
            async with trio.open_nursery() as nursery:
                services = trio.CancelScope(shield=True)
                nursery.start_soon(self._run_services, services)
                nursery.start_soon(watch_unread, self._swarm.loose, self._faults)
                try:
                    await self._start()
                    task_status.started()
                    if self._spool is not None and self._via is None:
                        await self._spool.serve(self._accept_spool)
                    await trio.sleep_forever()
                finally:
                    with trio.CancelScope(shield=True):
                        await self._shut_down(services)

    async def dial(self, address: str) -> PeerId:
        """Connect to an address; a connected peer is not dialled again. Raises TransportError or LocalError."""
        if self._spool is not None and address == self._config.via:
            return await self._dial_spool(self._spool, _relay_in(address))
        circuit = self._circuit_in(address)
        parsed, peer = parse_dial(address) if circuit is None else (None, circuit[1])
        if peer == self._peer_id:
            raise TransportError(f"{address} is this very node")
        self._check_running()
        async with self._dialling.setdefault(peer, trio.Lock()):
            try:
                if peer not in self.peers:
                    with translated(f"dialling {address}"), trio.fail_after(self._config.dial_timeout_s):
                        if circuit is None:
                            await self._swarm.dial_addr(parsed, parse_peer(peer))
                        else:
                            await self._circuits.dial(*circuit)
            finally:
                if not self._dialling[peer].statistics().tasks_waiting:
                    del self._dialling[peer]
        return peer

    async def _dial_spool(self, spool: SpoolEnds, relay: PeerId) -> PeerId:
        """Connect to the relay that serves our spool folder. Raises TransportError."""
        self._check_running()
        async with self._dialling.setdefault(relay, trio.Lock()):
            if relay not in self.peers:
                with translated("dialling the relay in the spool folder"), trio.fail_after(self._config.dial_timeout_s):
                    stream = await spool.dial(relay)
                    try:
                        await add_over(self._port, stream, dials=True)
                    finally:
                        if stream.trouble and relay not in self.peers:
                            raise TransportError(stream.trouble)
        return relay

    async def probe(self, address: str) -> str | None:
        """The network from which the peer of the address proves its key there; None for a circuit's. Raises
        TransportError or LocalError."""
        self._check_running()
        if (circuit := self._circuit_in(address)) is not None:
            await self._probe_circuit(*circuit)
            return None
        parsed, peer = parse_dial(address)
        with translated(f"probing {address}"), trio.fail_after(self._config.dial_timeout_s):
            return await self._swarm.probe(parsed, parse_peer(peer))

    def _circuit_in(self, address: str) -> tuple[PeerId, PeerId] | None:
        """Return the relay and the peer of what is dialled through a relay: every peer but `via`, where that is set."""
        circuit = parse_circuit(address)
        if circuit is not None or self._via is None:
            return circuit
        peer = parse_dial(address)[1]
        return None if peer == self._via else (self._via, peer)

    async def connect_bare(self, address: str, asker: PeerId) -> Stream:
        """Return the bytes of a new TCP connection to what listens at a multiaddr: for a relay, which carries the
        handshake of `asker` over it. Nobody's key is proved. Raises TransportError or LocalError."""
        self._check_running()
        parsed, peer = parse_dial(address)
        with translated(f"dialling {address}"), trio.fail_after(self._config.dial_timeout_s):
            try:
                socket = await trio.open_tcp_stream(*host_and_port(parsed))
            except OSError as error:
                raise TransportError(f"nothing answers at {address}") from error
        return BareStream(socket, peer, self._swarm.wire)

    async def _probe_circuit(self, relay: PeerId, peer: PeerId) -> None:
        if relay != self._peer_id:
            await self._circuits.probe(relay, peer)
        elif peer not in self.peers:  # else it answers through us now
            raise TransportError(f"not connected to {peer}")

    async def relayed_by(self, peer: PeerId) -> Grant | None:
        """Ask a connected peer to relay for us, or to go on with that; None where it does not."""
        return await self._circuits.granted_by(peer, self._peer_id)

    async def open_stream(self, peer: PeerId, protocol: str, *, bulk: bool = False) -> Stream:
        """A new stream to a connected peer; `bulk`: over a data connection, if there is one. Raises TransportError."""
        self._check_running()
        if bulk and self._config.data_connections and (stream := await self._channels.open(peer, protocol)) is not None:
            for connection in self._swarm.get_connections(parse_peer(peer)):
                self._swarm.used(connection.muxed_conn)
            return stream
        return await self._open_libp2p(peer, protocol)

    async def _open_anchor(self, peer: PeerId, protocol: str) -> tuple[Stream, Way]:
        stream = await self._open_libp2p(peer, protocol)
        try:
            return stream, Way(dialled=stream.dialled)
        except TransportError:
            await stream.reset()
            raise

    async def _open_libp2p(self, peer: PeerId, protocol: str) -> Libp2pStream:
        with translated(f"opening {protocol} to {peer}"), trio.fail_after(self._config.open_timeout_s):
            net = await self._new_stream(peer)
            try:
                # The timeout above decides; this one only has to be longer.
                patience = int(self._config.open_timeout_s) + 1
                communicator = MultiselectCommunicator(net)
                await self._host.multiselect_client.select_one_of([protocol], communicator, patience)
            except BaseException:
                with trio.CancelScope(shield=True):
                    await net.reset()
                raise
        net.set_protocol(protocol)
        return Libp2pStream(net, peer, self._spawn)

    async def publish(self, data: bytes) -> None:
        """Broadcast to the swarm, best effort. Raises LocalError above 8 KiB."""
        if len(data) > MAX_MESSAGE_BYTES:
            raise LocalError(f"a broadcast of {len(data)} bytes is above the {MAX_MESSAGE_BYTES} allowed")
        if self._pubsub is not None and self._nursery is not None:
            await self._pubsub.publish_to_topic(data)

    async def disconnect(self, peer: PeerId) -> None:
        """Close every connection to `peer`: those for bulk at once, the others when what is queued has left."""
        self._channels.drop(peer)
        await _close_all(self._swarm.get_connections(parse_peer(peer)))

    async def _run_services(self, services: trio.CancelScope) -> None:
        assert self._pubsub is not None
        with services:
            async with trio.open_nursery() as self._nursery:
                for service in (self._swarm, self._pubsub.router, self._pubsub):
                    service._manager = GuardedManager(service, self._faults)
                    self._nursery.start_soon(service.manager.run)

    async def _start(self) -> None:
        assert self._pubsub is not None
        if self._spool is not None:
            await (self._spool.prepare() if self._via is not None else self._spool.claim())
        await self._swarm.event_background_nursery_created.wait()
        await self._pubsub.wait_until_ready()
        await self._swarm.listen(*map(parse_listen, self._config.listen))
        self._host.fix_addrs()
        # Not trio's clock: threads without it ask too, as that of multicast DNS.
        self._addresses = OwnAddresses(self._host.get_transport_addrs(), self._peer_id, time.monotonic)
        await self._pubsub.join()

    async def _shut_down(self, services: trio.CancelScope) -> None:
        assert self._pubsub is not None
        self._swarm.on_peer = lambda peer, up: None  # we leave them, not they us
        try:
            self._channels.close()
            await _close_all(self._swarm.get_connections())
            for listener in list(self._swarm.listeners.values()):
                await listener.close()
        finally:
            services.cancel()
            self._nursery = None
            self._pubsub.stop_cache()

    async def _new_stream(self, peer: PeerId) -> Any:
        """A stream without a protocol yet. Shielded, since a cancellation midway would leak it (trap 14); nothing in
        it waits for the network, given that the connection has room for the stream."""
        peer_id = parse_peer(peer)
        connections = self._swarm.get_connections(peer_id)
        if not connections:
            raise TransportError(f"not connected to {peer}")
        if all(len(connection.muxed_conn.streams) >= MAX_STREAMS for connection in connections):
            raise TransportError(f"{MAX_STREAMS} streams to {peer} are open already")
        with trio.CancelScope(shield=True):
            net = await self._swarm.new_stream(peer_id)
        self._swarm.used(net.muxed_conn)
        return net

    async def _serve(self, protocol: str, net_stream: Any) -> None:
        """Run the handler on an inbound stream and finish the stream after it."""
        self._swarm.used(net_stream.muxed_conn)
        stream = Libp2pStream(net_stream, PeerId(str(net_stream.muxed_conn.peer_id)), self._spawn)
        if protocol == DATA_PROTOCOL:
            await (self._serve_anchor(stream) if self._config.data_connections else stream.reset())
        elif protocol == STOP_PROTOCOL:
            await self._circuits.accept(stream)
        else:
            await self._serve_stream(protocol, stream)

    async def _serve_anchor(self, stream: Libp2pStream) -> None:
        try:
            await self._channels.serve(stream, Way(dialled=stream.dialled))
        except TransportError as error:
            self._faults.note("data_open", error)
            await stream.reset()
        else:
            await stream.close()

    async def _serve_stream(self, protocol: str, stream: Stream) -> None:
        assert self._handlers is not None
        try:
            await self._handlers.handle_stream(protocol, stream)
        except Exception as error:
            self._faults.note("handler", error)
            await stream.reset()
        except BaseException:
            await stream.reset()
            raise
        else:
            await stream.close()

    async def _accept_spool(self, stream: Stream) -> None:
        """Take a node that comes by the spool folder, as a caller. One that is refused may read why."""
        try:
            with trio.fail_after(self._config.dial_timeout_s):
                await add_over(self._port, stream, dials=False)
        except (GossipError, trio.TooSlowError) as error:
            self._faults.note("handshake", error)
            with trio.move_on_after(SHUTDOWN_S), suppress(TransportError):
                await stream.close()
                while await stream.receive_some(MAX_MESSAGE_BYTES):
                    pass
            await stream.reset()

    def _peer_changed(self, peer: PeerId, up: bool) -> None:
        assert self._handlers is not None
        if up:
            self._channels.came(peer)
        else:
            self._channels.drop(peer)
            self._circuits.drop(peer)
        try:
            (self._handlers.peer_connected if up else self._handlers.peer_lost)(peer)
        except Exception as error:
            self._faults.note("handler", error)

    def _spawn(self, task: Callable[[], Awaitable[None]]) -> None:
        if self._nursery is not None:
            self._nursery.start_soon(task)

    def _check_running(self) -> None:
        if self._nursery is None:
            raise TransportError("the transport is not running")


def _relay_in(address: str) -> PeerId:
    """Return the relay that an address leads to, by TCP or a spool folder. Raises LocalError."""
    return peer_in(address) if address.startswith(f"{SPOOL}/") else parse_dial(address)[1]


async def _close_all(connections: Sequence[Any]) -> None:
    """Close at once, and hard what is not closed in time. Raises nothing: there is nobody to tell any more."""
    with trio.move_on_after(SHUTDOWN_S):
        async with trio.open_nursery() as nursery:
            for connection in connections:
                nursery.start_soon(_close, connection.close)
    for connection in connections:
        await _close(connection.muxed_conn.secured_conn.close)


async def _close(close: Callable[[], Awaitable[None]]) -> None:
    with suppress(Exception):
        await close()
