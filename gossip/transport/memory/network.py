"""A whole network inside one process: for tests, the simulator, and any clock, real or virtual.

Nodes attach and get addresses `/memory/<n>/p2p/<id>`. Streams are bounded pipes; broadcasts flood like gossipsub's:
a node that finds a message valid passes it on, each message at most once. Links have loss (broadcasts only, as with
gossipsub over TCP) and latency, drawn from the seeded `rng`; they can be cut, parted into groups, and stalled (the
connection stays, nothing passes: a stopped process); see link_quality.py. Over a WideAreaNetwork (wan.py) each node has
one access link for all that it sends and receives, and for what it relays. Who cannot be dialled is reached through a
relay, by the code of real nodes (memory_circuits.py).
"""

import itertools
import math
import random
import time
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import trio

from gossip.core.errors import LocalError
from gossip.core.ids import PeerId
from gossip.reachability.circuit import STOP_PROTOCOL
from gossip.reachability.relay import MAX_CIRCUITS, MAX_CIRCUITS_OF_PEER, RELAY_S, parse_circuit
from gossip.transport.base import (
    PING_BYTES,
    PING_PROTOCOL,
    Admission,
    Grant,
    Stream,
    TransportError,
    TransportHandlers,
)
from gossip.transport.drop_reasons import counted
from gossip.transport.handshake_admission import AdmissionDeniedError, HandshakeAdmission
from gossip.transport.memory.circuit_mux import CircuitStream
from gossip.transport.memory.courier import Courier
from gossip.transport.memory.link_quality import LinkQuality, Links
from gossip.transport.memory.memory_circuits import CircuitHooks, MemoryCircuits
from gossip.transport.memory.pipe import MemoryStream, Pipe
from gossip.transport.memory.shaped_pipe import BUFFERED_S, ShapedPipe
from gossip.transport.memory.traffic_tap import TrafficTap
from gossip.transport.memory.wan import (
    DIAL_ROUND_TRIPS,
    STREAM_BYTES,
    STREAM_ROUND_TRIPS,
    EventLoop,
    Route,
    WideAreaNetwork,
)
from gossip.transport.wire_bytes import WireBytes

MAX_INBOX: Final = 1024
"""Broadcasts waiting at a node; beyond it they are lost, as everywhere."""

MAX_OVER_CIRCUITS: Final = 4096
"""Broadcasts that went through relays and are remembered, of all nodes together: four full inboxes."""


@dataclass(eq=False, slots=True)
class _Broadcast:
    """A message on its way. `taken`: a bit for each attachment that has taken it, so that each handles it once. It is
    gone with the message: a thousand nodes that each remembered what they took would hold little else."""

    number: int
    data: bytes
    taken: int = 0


@dataclass(eq=False)
class _Connection:
    ends: "tuple[MemoryTransport, MemoryTransport]"
    """First who dialled, then who was dialled."""
    streams: list[MemoryStream] = field(default_factory=list)


class MemoryNetwork(Links):
    """Every node, and every link's quality. `wan`: every node's access link, which then decides instead of the
    qualities; nodes have links there before they attach."""

    def __init__(
        self, rng: random.Random, quality: LinkQuality = LinkQuality(), wan: WideAreaNetwork | None = None
    ) -> None:
        super().__init__(rng, quality)
        self.wan = wan
        self.tap: TrafficTap | None = None
        """Is called for all that is sent."""
        self._nodes: dict[str, MemoryTransport] = {}
        self._numbers = itertools.count()
        self._places = itertools.count()
        self._over_circuits: OrderedDict[int, _Broadcast] = OrderedDict()

    def attach(
        self,
        peer: PeerId,
        admission: Admission | None = None,
        *,
        network: str | None = "",
        unix_time: Callable[[], float] = time.time,
        via: PeerId | None = None,
    ) -> "MemoryTransport":
        """A node's attachment, not yet listening. A peer may attach again, as after a restart. `admission`: who may
        connect; None: everybody who asks for none either. `network`: which others see it in, as `network_of` says it
        to them: "" as on one LAN, None as behind a relay. `unix_time`: its wall clock,
        by which a reservation with a relay ends. `via`: the relay through which it reaches all others."""
        address = f"/memory/{next(self._numbers)}/p2p/{peer}"
        return MemoryTransport(self, peer, address, next(self._places), admission, network, unix_time, via)

    def broadcast(self, data: bytes) -> _Broadcast:
        """A new message, told apart from one with the same bytes."""
        return _Broadcast(next(self._numbers), data)

    def into_circuits(self, message: _Broadcast) -> None:
        """Remember a message that goes on as bytes, so that it is the same one where it comes out."""
        self._over_circuits[message.number] = message
        while len(self._over_circuits) > MAX_OVER_CIRCUITS:
            self._over_circuits.popitem(last=False)

    def out_of_circuits(self, number: int, data: bytes) -> _Broadcast:
        """Return the message that came as these bytes; a new one where none such went in, or long ago."""
        message = self._over_circuits.get(number)
        return message if message is not None and message.data == data else _Broadcast(number, data)

    def add(self, node: "MemoryTransport") -> None:
        """A node listens."""
        self._nodes[node.addresses[0]] = node

    def remove(self, node: "MemoryTransport") -> None:
        """A node listens no more."""
        for address in node.addresses:
            self._nodes.pop(address, None)

    def find(self, address: str) -> "MemoryTransport | None":
        """The node that listens there."""
        return self._nodes.get(address)

    def delay(self, one: PeerId, other: PeerId, size: int = 0) -> float:
        """Seconds one way for `size` bytes, over access links for nothing but the way; infinite while stalled."""
        if self.wan is None or other not in self.wan:  # an address may name anybody
            return super().delay(one, other, size)
        return math.inf if self.stands_still(one, other) else self.wan.route(one, other).latency_s

    def loses(self, one: PeerId, other: PeerId) -> bool:
        """Draw whether a broadcast is lost on this link."""
        if self.wan is None:
            return super().loses(one, other)
        loss = self.wan.route(one, other).loss
        return self.stands_still(one, other) or (loss > 0 and self._rng.random() < loss)

    def pipe(self, one: PeerId, other: PeerId) -> Pipe:
        """Return a new direction of a stream."""
        delay = partial(self.delay, one, other)
        return Pipe(delay) if self.wan is None else ShapedPipe(delay, self.wan.route(one, other))

    def _links_changed(self) -> None:
        for node in list(self._nodes.values()):
            node.wake()
            for peer in sorted(node.linked):
                if not self.reachable(node.peer_id, peer):
                    node.unlink(peer)


class MemoryTransport:
    """One node's attachment. `handler_errors`: exceptions that the handlers let out, which they must not."""

    def __init__(
        self,
        network: MemoryNetwork,
        peer: PeerId,
        address: str,
        place: int,
        admission: Admission | None,
        seen_in: str | None = "",
        unix_time: Callable[[], float] = time.time,
        via: PeerId | None = None,
    ) -> None:
        self.handler_errors: list[Exception] = []
        self.seen_in = seen_in
        """The network that others see us in."""
        self.wire = WireBytes()
        """What its streams and broadcasts carry. There is no framing and no handshake here."""
        self._network = network
        self._peer = peer
        self._via = via
        self._loop = EventLoop() if network.wan is None else network.wan.loop(peer)
        self._courier = Courier()
        """Of its broadcasts, over access links: those that it sends, and those that it has got."""
        self._waiting = 0
        """Broadcasts that came and are not handled yet, over access links."""
        self._address = address
        self._bit = 1 << place
        """Ours of those in `taken` of a broadcast."""
        self._connections: dict[PeerId, _Connection] = {}
        self._handlers: TransportHandlers | None = None
        self._nursery: trio.Nursery | None = None
        self._inbox_in, self._inbox = trio.open_memory_channel[tuple[PeerId, _Broadcast]](MAX_INBOX)
        self._overflowed = 0
        self._refused: Counter[str] = Counter()
        self._handshake_admission = HandshakeAdmission(admission, lambda kind: self._refused.update((kind,)))
        hooks = CircuitHooks(
            open_stream=self.open_stream,
            spawn=self._spawn,
            serve=self._serve_over_circuit,
            hear=lambda forwarder, number, data: self._take_in(forwarder, network.out_of_circuits(number, data)),
            up=self._came_by_circuit,
            lost=self._lost_by_circuit,
            note=lambda kind: self._refused.update((kind,)),
        )
        of_relay = MAX_CIRCUITS_OF_PEER if via is None else MAX_CIRCUITS
        self._circuits = MemoryCircuits(peer, self._handshake_admission, hooks, unix_time, of_relay)
        self.circuit_end: Callable[[Stream], Awaitable[None]] = self._circuits.ends.accept
        """Serves what a relay has for us. A hostile node has its own."""

    @property
    def peer_id(self) -> PeerId:
        """Our own name."""
        return self._peer

    @property
    def addresses(self) -> Sequence[str]:
        """Where others can dial us; nowhere, where we reach nobody but a relay."""
        return (self._address,) if self._via is None else ()

    @property
    def peers(self) -> frozenset[PeerId]:
        """Peers with a live connection."""
        return frozenset(self._connections) | self._circuits.peers

    @property
    def linked(self) -> frozenset[PeerId]:
        """Peers with a live connection of no relay's."""
        return frozenset(self._connections)

    @property
    def drops(self) -> Mapping[str, int]:
        """Broadcasts that were lost because too many waited, who was refused, and what handlers let out."""
        return counted({"pubsub_flood": self._overflowed, "handler": len(self.handler_errors), **self._refused})

    def dialled_us(self, peer: PeerId) -> bool:
        """Whether the connection to `peer` is one that it dialled."""
        connection = self._connections.get(peer)
        return connection is not None and connection.ends[1] is self

    def network_of(self, peer: PeerId) -> str | None:
        """The network that a connected peer was attached in."""
        connection = self._connections.get(peer)
        return None if connection is None else self._far_end(connection).seen_in

    def address_at(self, peer: PeerId, port: int) -> str | None:
        """Every node is a host of its own here; its number stands for its port."""
        return f"/memory/{port}/p2p/{peer}" if peer in self._connections else None

    async def relayed_by(self, peer: PeerId) -> Grant | None:
        """Ask a connected peer to relay for us, or to go on with that; None where it does not."""
        return await self._circuits.ends.granted_by(peer, self._peer)

    async def run(
        self, handlers: TransportHandlers, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Listen and serve until cancelled. Raises LocalError when the address is taken."""
        if self._network.find(self._address) is not None:
            raise LocalError(f"{self._address} is in use")
        async with trio.open_nursery() as nursery:
            self._handlers, self._nursery = handlers, nursery
            self._handshake_admission.tell = lambda caller, why: handlers.caller_refused(caller, why)
            if self._via is None:
                self._network.add(self)
            if self._network.wan is not None:
                nursery.start_soon(self._courier.run)
            task_status.started()
            try:
                await self._handle_broadcasts()
            finally:
                self._network.remove(self)
                self._handlers = self._nursery = None
                for peer in sorted(self.peers):
                    self.drop(peer)

    async def dial(self, address: str) -> PeerId:
        """Connect to an address of this network, or through a relay."""
        if (circuit := self._circuit_in(address)) is not None:
            return await self._dial_circuit(*circuit)
        node = await self._found(address)
        peer = node.peer_id
        if peer not in self.peers:
            self._introduce(node)
            connection = _Connection((self, node))
            node.take(self._peer, connection)
            self.take(peer, connection)
        return peer

    async def probe(self, address: str) -> str | None:
        """Return the network of the peer that answers there; None for a circuit's."""
        if (circuit := self._circuit_in(address)) is not None:
            await self._probe_circuit(*circuit)
            return None
        node = await self._found(address)
        self._introduce(node)
        return node.seen_in

    def _circuit_in(self, address: str) -> tuple[PeerId, PeerId] | None:
        circuit, peer = parse_circuit(address), PeerId(address.rpartition("/p2p/")[2])
        return circuit if circuit is not None or self._via in (None, peer) else (self._via, peer)

    async def connect_bare(self, address: str, asker: PeerId) -> Stream:
        """Return a stream of bytes to the node at an address: for a relay, which carries a handshake of `asker` with it
        over that. Raises TransportError or LocalError."""
        node = await self._found(address)
        there, back = self._network.pipe(self._peer, node.peer_id), self._network.pipe(node.peer_id, self._peer)
        node.accept_bare(asker, MemoryStream(asker, there, back, node.wire))
        return MemoryStream(node.peer_id, back, there, self.wire)

    def accept_bare(self, caller: PeerId, stream: MemoryStream) -> None:
        """Take a connection of `caller`, whose handshake is still to come: it shows whether it is that peer."""

        async def take() -> None:
            try:
                with trio.fail_after(RELAY_S):
                    connection = await self._circuits.upgraded(stream, caller, dials=False)
                await self._circuits.add(connection)
            except (TransportError, trio.TooSlowError):
                self._refused["handshake"] += 1
                await stream.reset()

        self._spawn(take)

    async def _dial_circuit(self, relay: PeerId, peer: PeerId) -> PeerId:
        if peer == self._peer:
            raise TransportError("an address of this very node")
        if peer not in self.peers:
            await self._circuits.ends.dial(relay, peer)
        return peer

    async def _probe_circuit(self, relay: PeerId, peer: PeerId) -> None:
        if relay != self._peer:
            await self._circuits.ends.probe(relay, peer)
        elif peer not in self.peers:  # else it answers through us now
            raise TransportError(f"not connected to {peer}")

    async def _found(self, address: str) -> "MemoryTransport":
        peer = PeerId(address.rpartition("/p2p/")[2])
        if not address.startswith("/memory/") or not peer:
            raise LocalError(f"{address!r} is no address of this network")
        delay = await self._network.until_it_flows(self._peer, peer)
        await trio.sleep(delay if self._network.wan is None else 2 * DIAL_ROUND_TRIPS * delay)
        node = self._network.find(address)
        there = node is not None and not self._network.hidden(peer) and self._network.reachable(self._peer, peer)
        if node is None or node is self or self._nursery is None or not there:
            raise TransportError(f"nobody answers at {address}")
        return node

    def _introduce(self, node: "MemoryTransport") -> None:
        """What the handshake is elsewhere: who listens decides first, and a stranger sees nothing. Raises
        TransportError."""
        handshake_admission, its, now = self._handshake_admission, node._handshake_admission, trio.current_time()
        if handshake_admission.open != its.open:
            if not its.open:
                its.refusal("refused_protocol", "it shows no membership", self._peer, None, now)
            raise TransportError("one of the two asks for membership, and the other has none")
        if handshake_admission.open:
            return
        try:
            its.admit(self._peer, handshake_admission.credentials(), None, now)
        except AdmissionDeniedError as refused:
            why = (
                handshake_admission.heard(node.peer_id, refused.answer)
                if refused.answer
                else "it does not take us for a member"
            )
            raise TransportError(why) from None
        try:
            handshake_admission.admit(node.peer_id, its.credentials(), None, now)
        except AdmissionDeniedError as refused:
            if refused.answer:
                its.heard(self._peer, refused.answer)
            raise

    async def open_stream(self, peer: PeerId, protocol: str, *, bulk: bool = False) -> Stream:
        """A new stream to a connected peer."""
        await self._checkpoint()
        if self._network.wan is not None and peer in self._connections:
            await trio.sleep(2 * STREAM_ROUND_TRIPS * await self._network.until_it_flows(self._peer, peer))
            await self._loop.compute(self._loop.stream_s)
        connection = self._connections.get(peer)
        if connection is None:
            return await self._circuits.open(peer, protocol)
        remote = self._far_end(connection)
        there, back = self._network.pipe(self._peer, peer), self._network.pipe(peer, self._peer)
        tap, overhead = self._network.tap, 0 if self._network.wan is None else STREAM_BYTES
        tell = None if tap is None else tap.stream(self._peer, peer, protocol, overhead)
        ours = MemoryStream(peer, back, there, self.wire, tell and partial(tell, self._peer))
        theirs = MemoryStream(self._peer, there, back, remote.wire, tell and partial(tell, peer))
        if self._network.wan is not None:
            for end in (self, remote):
                end.wire.sent += STREAM_BYTES
                end.wire.received += STREAM_BYTES
        remote.accept(protocol, theirs, connection)
        connection.streams.append(ours)
        return ours

    async def publish(self, data: bytes) -> None:
        """Broadcast to all connected peers, who pass it on."""
        message = self._network.broadcast(data)
        message.taken |= self._bit
        self._spread(message, without=self._peer)
        await self._checkpoint()

    async def _checkpoint(self) -> None:
        """Let others run where nothing takes time. Over access links something does, and a wake-up less is gained."""
        if self._network.wan is None:
            await trio.lowlevel.checkpoint()
        else:
            await trio.lowlevel.checkpoint_if_cancelled()

    async def disconnect(self, peer: PeerId) -> None:
        """Close the connection to `peer`."""
        self.drop(peer)
        await self._checkpoint()

    # -- called by the network and by other nodes

    def take(self, peer: PeerId, connection: _Connection) -> None:
        """A connection is up."""
        first = peer not in self.peers
        self._connections[peer] = connection
        if first and self._handlers is not None:
            self._handlers.peer_connected(peer)

    def drop(self, peer: PeerId) -> None:
        """Break all connections to `peer` at both ends."""
        self._circuits.drop(peer)
        self.unlink(peer)

    def unlink(self, peer: PeerId) -> None:
        """Break the connection to `peer` that is no relay's."""
        connection = self._connections.get(peer)
        if connection is None:
            return
        for stream in connection.streams:
            stream.break_off()
        one, other = connection.ends
        one.let_go(other.peer_id, connection)
        other.let_go(one.peer_id, connection)

    def let_go(self, peer: PeerId, connection: _Connection) -> None:
        """Our end of a broken connection."""
        if self._connections.get(peer) is connection:
            del self._connections[peer]
            self._circuits.ends.drop(peer)
            if peer not in self._circuits and self._handlers is not None:
                self._handlers.peer_lost(peer)

    def accept(self, protocol: str, stream: MemoryStream, connection: _Connection) -> None:
        """A peer opens a stream to us."""
        if self._nursery is None:
            raise TransportError("the peer is shutting down")
        self._nursery.start_soon(self._serve_linked, protocol, stream, connection)

    def deliver(self, forwarder: PeerId, message: _Broadcast) -> None:
        """A broadcast comes in, or is lost when too many wait."""
        self.wire.received += len(message.data)
        self._take_in(forwarder, message)

    def wake(self) -> None:
        """Links may have changed."""
        for connection in self._connections.values():
            for stream in connection.streams:
                stream.wake()

    # -- insides

    def _take_in(self, forwarder: PeerId, message: _Broadcast) -> None:
        if message.taken & self._bit:  # seven of eight, in a mesh of eight: nobody need wake up for them
            return
        if self._network.wan is not None:
            self._handle_when_due(forwarder, message)
            return
        try:
            self._inbox_in.send_nowait((forwarder, message))
        except trio.WouldBlock:
            self._overflowed += 1

    def _spawn(self, task: Callable[[], Awaitable[None]]) -> None:
        if self._nursery is None:
            raise TransportError("the transport is not running")
        self._nursery.start_soon(task)

    def _serve_over_circuit(self, stream: CircuitStream) -> None:
        if self._nursery is not None:
            self._nursery.start_soon(self._serve, stream.protocol, stream)

    def _came_by_circuit(self, peer: PeerId) -> None:
        if peer not in self._connections and self._handlers is not None:
            self._handlers.peer_connected(peer)

    def _lost_by_circuit(self, peer: PeerId) -> None:
        if peer not in self._connections and self._handlers is not None:
            self._handlers.peer_lost(peer)

    def _far_end(self, connection: _Connection) -> "MemoryTransport":
        one, other = connection.ends
        return other if one is self else one

    async def _serve_linked(self, protocol: str, stream: MemoryStream, connection: _Connection) -> None:
        try:
            await self._serve(protocol, stream)
        finally:
            connection.streams = [ours for ours in connection.streams if not ours.is_over()]

    async def _serve(self, protocol: str, stream: MemoryStream | CircuitStream) -> None:
        handlers = self._handlers
        try:
            await self._loop.compute(self._loop.stream_s)
            if protocol == STOP_PROTOCOL:
                await self.circuit_end(stream)
            elif protocol == PING_PROTOCOL:
                await _answer_pings(stream)
            elif handlers is not None:
                await handlers.handle_stream(protocol, stream)
            await stream.close()
        except Exception as error:  # the guard that base.py asks for
            self.handler_errors.append(error)
            stream.break_off()
        except trio.Cancelled:
            stream.break_off()
            raise

    async def _handle_broadcasts(self) -> None:
        async for forwarder, message in self._inbox:
            if not message.taken & self._bit:
                message.taken |= self._bit
                self._handle(forwarder, message)

    def _handle_when_due(self, forwarder: PeerId, message: _Broadcast) -> None:
        """Over access links: the courier handles one after the other, each for as long as the device takes. So a node
        wakes once for a broadcast, and not to take it, and again to be done."""
        if self._waiting >= MAX_INBOX:
            self._overflowed += 1
            return
        message.taken |= self._bit
        self._waiting += 1
        handled_at = self._loop.reserve(self._loop.broadcast_s)

        def handle() -> None:
            self._waiting -= 1
            self._handle(forwarder, message)

        self._courier.at(handled_at, handle)

    def _handle(self, forwarder: PeerId, message: _Broadcast) -> None:
        if self._handlers is None:
            return
        try:
            valid = self._handlers.handle_message(forwarder, message.data)
        except Exception as error:
            self.handler_errors.append(error)
            valid = False
        if valid:
            self._spread(message, without=forwarder)

    def _spread(self, message: _Broadcast, without: PeerId) -> None:
        passed_over = {without} if self._handlers is None else {without, *self._handlers.uninterested(message.data)}
        relayed = sorted(self._circuits.peers - self._connections.keys() - passed_over)
        if (tap := self._network.tap) is not None and self._handlers is not None:
            copies = len(relayed) + sum(peer not in passed_over for peer in self._connections)
            tap.broadcast(self._peer, message.data, copies, own=without == self._peer, kept=self._handlers.keeps)
        if relayed:
            self._network.into_circuits(message)
        for peer in relayed:
            self._circuits.broadcast(peer, message.number, message.data)
        for peer, connection in list(self._connections.items()):
            if peer in passed_over or self._nursery is None:
                continue
            self.wire.sent += len(message.data)
            if self._network.loses(self._peer, peer):
                continue
            remote = self._far_end(connection)
            if self._network.wan is not None:
                self._carry(remote, message)
                continue
            delay = self._network.delay(self._peer, peer)
            if delay:
                self._nursery.start_soon(self._deliver_later, remote, message, delay)
            else:
                remote.deliver(self._peer, message)

    async def _deliver_later(self, remote: "MemoryTransport", message: _Broadcast, delay: float) -> None:
        await trio.sleep(delay)
        remote.deliver(self._peer, message)

    def _carry(self, remote: "MemoryTransport", message: _Broadcast) -> None:
        """Send a broadcast over both access links. It is lost with the connection."""
        assert self._network.wan is not None
        route = self._network.wan.route(self._peer, remote.peer_id)
        left_at = route.broadcast_leaves_at(len(message.data), trio.current_time())
        self._courier.at(route.broadcast_arrives_at(left_at), partial(self._land, route, remote, message))

    def _land(self, route: Route, remote: "MemoryTransport", message: _Broadcast) -> None:
        landed_at = route.lands_at(len(message.data), trio.current_time())
        if landed_at - trio.current_time() <= BUFFERED_S:
            self._hand_over(remote, message)
        else:
            self._courier.at(landed_at, partial(self._hand_over, remote, message))

    def _hand_over(self, remote: "MemoryTransport", message: _Broadcast) -> None:
        if remote.peer_id in self._connections:
            remote.deliver(self._peer, message)


async def _answer_pings(stream: Stream) -> None:
    with suppress(TransportError):  # who asks may be gone
        while data := await stream.receive_some(PING_BYTES):
            await stream.send_all(data)
