"""The relay's part of relaying (reachability/relay.py): grants reservations, connects two neighbours, and carries bytes
between them. It knows nothing of a run: its callers say whom it serves, and under which addresses."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial

import trio

from gossip.context import ServiceContext
from gossip.core.api import Relaying
from gossip.core.errors import GossipError, Reason, RemoteError
from gossip.core.identity import Identity
from gossip.core.ids import PeerId
from gossip.reachability.circuit import (
    STOP_PROTOCOL,
    CircuitKind,
    CircuitMessage,
    CircuitStatus,
    Reservation,
    binary_address,
    encode_hop,
    encode_stop,
    parse_hop,
    parse_stop,
    status_for,
)
from gossip.reachability.delimited_task import receive_message, send_message
from gossip.reachability.relay import CIRCUIT_IDLE_S, CIRCUIT_PIECE_BYTES, RELAY_S, RESERVATION_S, Circuits
from gossip.reachability.vouchers import seal_voucher
from gossip.transport.base import Stream, Transport, TransportError

Dial = Callable[[], Awaitable[Stream]]
"""Connects to a member; returns a stream of bytes that it takes for a caller's. Raises GossipError."""


def _onward_to_nobody(asker: PeerId, target: PeerId) -> Dial | None:
    """Return None: a neighbour's relay dials nobody."""
    return None


class Relay:
    """`serves`: whether we relay for a peer, at either end of a circuit. `direct`: whether a peer is connected without
    a relay; None: where it has an address. `onward`: how a member that is not connected to us is dialled for an asker;
    None where we do not know it. `addresses`: where others reach us, for reservations; none: nobody can. `offence`
    charges a peer. `unix_time`: the wall clock, by which a reservation's end is told."""

    def __init__(
        self,
        *,
        transport: Transport,
        identity: Identity,
        circuits: Circuits,
        serves: Callable[[PeerId], bool],
        addresses: Callable[[], Sequence[str]],
        offence: Callable[[PeerId, RemoteError], None],
        unix_time: Callable[[], float],
        direct: Callable[[PeerId], bool] | None = None,
        onward: Callable[[PeerId, PeerId], Dial | None] = _onward_to_nobody,
    ) -> None:
        self._transport = transport
        self._identity = identity
        self._serves = serves
        self._direct = direct
        self._onward = onward
        self._addresses = addresses
        self._offence = offence
        self._unix_time = unix_time
        self.circuits = circuits

    async def handle_stream(self, stream: Stream) -> None:
        """Serve one stream to its end; raises nothing of the peer's or the network's making."""
        try:
            raw = await receive_message(stream, RELAY_S)
            if raw is not None:
                await self._answer(stream, raw)
        except RemoteError as error:
            if error.reason is not Reason.TIMEOUT:
                self._offence(stream.remote, error)
            await stream.reset()
        except TransportError:
            await stream.reset()

    def reading(self) -> Relaying:
        """Return what it relays, for metrics."""
        refused = {status.label: times for status, times in self.circuits.refused.items()}
        return Relaying(circuits=len(self.circuits), carried_bytes=self.circuits.carried, refused=refused)

    async def _answer(self, stream: Stream, raw: bytes) -> None:
        peer, now = stream.remote, trio.current_time()
        try:
            asked = parse_hop(raw)
        except RemoteError as error:
            self._offence(peer, error)
            await self._refuse(stream, status_for(error))
            return
        if not self.circuits.may_ask(peer, now):
            self._offence(peer, RemoteError(Reason.FLOODED, "it asks a relay again and again"))
            await self._refuse(stream, CircuitStatus.RESOURCE_LIMIT_EXCEEDED)
        elif asked.kind is CircuitKind.RESERVE:
            await self._reserve(stream, now)
        elif asked.peer is not None:
            await self._connect(stream, asked.peer, now)
        else:
            self._offence(peer, RemoteError(Reason.PROTOCOL, "a relay is told what it did not ask"))
            await self._refuse(stream, CircuitStatus.UNEXPECTED_MESSAGE)

    async def _refuse(self, stream: Stream, status: CircuitStatus) -> None:
        self.circuits.refused[status] += 1
        await _tell(stream, CircuitMessage(kind=CircuitKind.STATUS, status=status))

    def _welcome(self, peer: PeerId) -> bool:
        """Return whether we relay for a peer: not if it is connected through another relay, or bytes could go round in
        circles."""
        if self._direct is not None:
            return self._serves(peer) and self._direct(peer)
        return self._serves(peer) and self._transport.address_at(peer, 1) is not None

    async def _reserve(self, stream: Stream, now: float) -> None:
        peer, addresses = stream.remote, self._addresses()
        if not self._welcome(peer):
            await self._refuse(stream, CircuitStatus.PERMISSION_DENIED)
        elif not addresses or self.circuits.reserve(peer, now) is not CircuitStatus.OK:
            await self._refuse(stream, CircuitStatus.RESERVATION_REFUSED)
        else:
            expire = int(self._unix_time()) + RESERVATION_S  # by the wall clock, since the far end must understand it
            binary = tuple(filter(None, map(binary_address, addresses)))
            voucher = seal_voucher(self._identity, peer, expire)
            reservation = Reservation(expire=expire, addresses=binary, voucher=voucher)
            await _tell(
                stream, CircuitMessage(kind=CircuitKind.STATUS, status=CircuitStatus.OK, reservation=reservation)
            )

    async def _connect(self, near: Stream, target: PeerId, now: float) -> None:
        asker = near.remote
        if not self._welcome(asker):
            await self._refuse(near, CircuitStatus.PERMISSION_DENIED)
            return
        ends: tuple[PeerId, ...] = ()
        dial: Dial | None
        if self._serves(target):
            status, dial = self.circuits.take(asker, target, now), partial(self._far_end, asker, target)
            ends = (asker, target)
        elif target != asker and (dial := self._onward(asker, target)) is not None:
            status, ends = self.circuits.take_onward(asker), (asker,)
        else:  # also a former one that still has its reservation
            status, dial = CircuitStatus.NO_RESERVATION, None
        if status is not CircuitStatus.OK or dial is None:
            await self._refuse(near, status)
            return
        try:
            await self._join(near, dial)
        finally:
            self.circuits.leave(*ends)

    async def _join(self, near: Stream, dial: Dial) -> None:
        far: Stream | None = None
        with suppress(GossipError), trio.move_on_after(RELAY_S):
            far = await dial()
        if far is None:
            await self._refuse(near, CircuitStatus.CONNECTION_FAILED)
            return
        try:
            await _tell(near, CircuitMessage(kind=CircuitKind.STATUS, status=CircuitStatus.OK))
            await self._carry(near, far)
        finally:
            with trio.CancelScope(shield=True):
                await far.reset()
                await near.reset()

    async def _far_end(self, asker: PeerId, target: PeerId) -> Stream:
        """Open a stream to a far end that accepts the circuit. Raises GossipError where it does not."""
        far = await self._transport.open_stream(target, STOP_PROTOCOL)
        try:
            await send_message(far, encode_stop(CircuitMessage(kind=CircuitKind.CONNECT, peer=asker)), RELAY_S)
            answer = parse_stop(await receive_message(far, RELAY_S) or b"")
            if answer.kind is not CircuitKind.STATUS or answer.status != CircuitStatus.OK:
                raise TransportError(f"{target} does not take the circuit")
        except BaseException:
            with trio.CancelScope(shield=True):
                await far.reset()
            raise
        return far

    async def _carry(self, one: Stream, other: Stream) -> None:
        """Carry bytes both ways, until either end is done."""
        async with trio.open_nursery() as nursery:

            async def carry(source: Stream, sink: Stream) -> None:
                with suppress(TransportError):
                    await self._carry_one_way(source, sink)
                nursery.cancel_scope.cancel()

            nursery.start_soon(carry, one, other)
            nursery.start_soon(carry, other, one)

    async def _carry_one_way(self, source: Stream, sink: Stream) -> None:
        while True:
            piece = b""
            with trio.move_on_after(CIRCUIT_IDLE_S):
                piece = await source.receive_some(CIRCUIT_PIECE_BYTES)
            if not piece:
                return
            await trio.sleep(self.circuits.pause(len(piece), trio.current_time()))
            with trio.move_on_after(CIRCUIT_IDLE_S) as scope:
                await sink.send_all(piece)
            if scope.cancelled_caught:
                return
            self.circuits.carried += len(piece)


async def _tell(stream: Stream, message: CircuitMessage) -> None:
    await send_message(stream, encode_hop(message), RELAY_S)


def relay_of(context: ServiceContext, identity: Identity, unix_time: Callable[[], float]) -> Relay:
    """Return a member's relay: it serves neighbours only, where `network.relay` is set, unless nobody can dial us."""

    def addresses() -> Sequence[str]:
        if context.reach.unreachable(trio.current_time()):
            return ()
        return [address for address in context.addresses() if "/p2p-circuit/" not in address]

    return Relay(
        transport=context.transport,
        identity=identity,
        circuits=Circuits(context.config.relay_bytes_per_s),
        serves=lambda peer: context.config.relay and peer in context.engine.neighbours,
        addresses=addresses,
        offence=context.offence,
        unix_time=unix_time,
    )
