"""Circuits at their ends: a stream through a relay becomes a connection like any other.

The messages are those of libp2p's circuit relay v2, its code is not used (decision 0021). What a relay carries is taken
for a socket: a handshake between the two ends proves both keys over it, and what multiplexes it makes streams,
heartbeats and the end of a dead one. A transport says how that is done (`CircuitPort`); who is asked for what, and what
is believed of a relay, is the same for all. A circuit is nobody's proof of being reachable, has no address, and no data
connections of its own. Where a relay names a limit it is not kept to here: the relay ends the circuit then, and there
is another dial.
"""

import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Final, Generic, Protocol, TypeVar

import trio

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
from gossip.reachability.relay import MAX_CIRCUITS, MAX_CIRCUITS_OF_PEER, RELAY_S, circuit_address, lasting
from gossip.reachability.vouchers import check_voucher
from gossip.transport.base import Grant, Stream, TransportError

MAX_RELAYS: Final = 16
"""Relays whose reservation for us is remembered: three are held at a time (reachability/reachability_task.py), and some
are lost and found."""

C = TypeVar("C")
"""A transport's connection over a circuit."""


class CircuitPort(Protocol[C]):
    """What a transport makes of a circuit's stream."""

    async def upgraded(self, stream: Stream, peer: PeerId, *, dials: bool) -> C:
        """Return a connection with `peer` over the stream, and with nobody else. Raises TransportError."""

    async def add(self, connection: C) -> None:
        """Take it for one of the transport's own. Raises TransportError."""

    async def discard(self, connection: C) -> None:
        """Close one that was not added. Raises nothing of the network's."""

    def closed(self, connection: C) -> trio.Event:
        """Return what is set once the connection is over."""


class CircuitEnds(Generic[C]):
    """The circuits that end here. `open_stream`: to a connected peer. `note`: counts one more of this kind of drop.
    `unix_time`: the wall clock, by which a reservation's end is told. `most`: how many may end here; `of_relay`: how
    many of them one relay may bring, which is as many as an honest one carries for a peer. Else a single relay that
    lies would fill all places with keys of its own, and shut out whom others bring and whom we dial."""

    def __init__(
        self,
        port: CircuitPort[C],
        note: Callable[[str, BaseException | None], None],
        open_stream: Callable[[PeerId, str], Awaitable[Stream]],
        unix_time: Callable[[], float] = time.time,
        most: int = MAX_CIRCUITS,
        of_relay: int = MAX_CIRCUITS_OF_PEER,
    ) -> None:
        self.port = port
        self._note = note
        self._open_stream = open_stream
        self._unix_time = unix_time
        self._most = most
        self._of_relay = of_relay
        self._relays: dict[PeerId, float] = {}
        """With whom we have a reservation, and until when (seconds of trio's clock)."""
        self._held: dict[C, PeerId | None] = {}
        """Which relay brought each; None: we dialled it."""
        self._coming: Counter[PeerId | None] = Counter()
        """Circuits on their way: a handshake takes its time, and counts from its beginning."""

    def drop(self, relay: PeerId) -> None:
        """Forget what a peer granted: the last connection to it is gone."""
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
            self._note("circuit", error)
            return None
        lasts_s = lasting(reservation.expire, self._unix_time())
        self._relays.pop(relay, None)
        self._relays[relay] = trio.current_time() + lasts_s
        while len(self._relays) > MAX_RELAYS:  # of one that went just now, nobody would take it off
            del self._relays[next(iter(self._relays))]
        return Grant(address=circuit_address(relay, me), lasts_s=lasts_s)

    async def dial(self, relay: PeerId, target: PeerId) -> None:
        """Connect to `target` through `relay`. Raises TransportError."""
        if self._full():
            raise TransportError(f"{self._most} circuits end here already")
        with self._on_its_way(None):
            await self._add(await self._circuit(relay, target), None)

    async def probe(self, relay: PeerId, target: PeerId) -> None:
        """Find out whether `target` answers through `relay`. Raises TransportError."""
        connection = await self._circuit(relay, target)
        with trio.CancelScope(shield=True):
            await self.port.discard(connection)

    async def accept(self, stream: Stream) -> None:
        """Take whom a relay has for us, and serve that circuit to its end. Raises nothing of a remote's making."""
        try:
            await self._accepted(stream)
        except GossipError as error:
            self._note("circuit", error)
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
            self._note("circuit_unasked", None)
            await _tell(stream, CircuitStatus.PERMISSION_DENIED)
        elif self._full() or self._brought_by(stream.remote) >= self._of_relay:
            self._note("circuit", None)
            await _tell(stream, CircuitStatus.RESOURCE_LIMIT_EXCEEDED)
        else:
            await self._take(stream, asker)

    async def _take(self, stream: Stream, asker: PeerId) -> None:
        with self._on_its_way(stream.remote):
            await _tell(stream, CircuitStatus.OK)
            connection = await self._upgraded(stream, asker, dials=False)
            await self._add(connection, stream.remote)
        await self.port.closed(connection).wait()

    def _full(self) -> bool:
        """Return whether as many circuits end here, or are about to, as may. Nothing is awaited until one is
        counted."""
        self._held = {each: relay for each, relay in self._held.items() if not self.port.closed(each).is_set()}
        return len(self._held) + self._coming.total() >= self._most

    def _brought_by(self, relay: PeerId) -> int:
        return sum(each == relay for each in self._held.values()) + self._coming[relay]

    @contextmanager
    def _on_its_way(self, relay: PeerId | None) -> Iterator[None]:
        """Count a circuit that `relay` brings until it is held, or has failed. None: we dial it."""
        self._coming[relay] += 1
        try:
            yield
        finally:
            self._coming[relay] -= 1
            self._coming += Counter()  # drops the zeros

    async def _circuit(self, relay: PeerId, target: PeerId) -> C:
        """Return a connection with `target` through `relay`. Raises TransportError, LocalError for what is no peer
        id."""
        if not is_peer(target):
            raise LocalError(f"{target}: not a peer id")
        stream, _ = await self._asked(relay, CircuitMessage(kind=CircuitKind.CONNECT, peer=target))
        return await self._upgraded(stream, target, dials=True)

    async def _asked(self, relay: PeerId, ask: CircuitMessage) -> tuple[Stream, CircuitMessage]:
        """Return a stream on which the relay has granted what was asked, and its words. Raises TransportError."""
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

    async def _upgraded(self, stream: Stream, peer: PeerId, *, dials: bool) -> C:
        """Return a connection over the stream; one that takes too long is given up. Raises TransportError."""
        try:
            with trio.move_on_after(RELAY_S):
                return await self.port.upgraded(stream, peer, dials=dials)
            raise TransportError(f"a circuit with {peer}: no handshake in time")
        except BaseException:
            with trio.CancelScope(shield=True):
                await stream.reset()
            raise

    async def _add(self, connection: C, relay: PeerId | None) -> None:
        """Not as inbound, nor as dialled: it holds none of their places, and shows nobody's reachability."""
        await self.port.add(connection)
        self._held[connection] = relay


def _asker_in(raw: bytes) -> PeerId:
    """Return who wants a circuit to us, as a relay says. Raises RemoteError."""
    message = parse_stop(raw)
    if message.peer is None:
        raise RemoteError(Reason.UNKNOWN_KIND, "a far end is asked for something else than a circuit")
    return message.peer


async def _tell(stream: Stream, status: CircuitStatus) -> None:
    await send_message(stream, encode_stop(CircuitMessage(kind=CircuitKind.STATUS, status=status)), RELAY_S)
