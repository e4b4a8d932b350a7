"""A node's circuits through relays, in the in-memory network: the relays' code and the ends' are a real node's
(reachability/relay_task.py, reachability/circuit_ends_task.py), and so is every byte that a relay carries."""

import itertools
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import trio

from gossip.core.ids import PeerId
from gossip.reachability.circuit_ends_task import CircuitEnds
from gossip.reachability.relay import MAX_CIRCUITS_OF_PEER
from gossip.transport.base import Stream, TransportError
from gossip.transport.handshake_admission import AdmissionDeniedError, HandshakeAdmission
from gossip.transport.memory.circuit_mux import CircuitConnection, CircuitStream, FrameKind, MuxFrame, SealedFrames
from gossip.transport.memory.wan import DIAL_ROUND_TRIPS

SETUPS: Final = int(DIAL_ROUND_TRIPS) - 3
"""Round trips of a handshake beyond the proof of keys and the admission; TCP's own is none of a circuit's."""

PRIVATE, OPEN = b"\1", b"\0"


@dataclass(frozen=True, kw_only=True)
class CircuitHooks:
    """What a transport does for its circuits, and hears of them. `spawn` starts a task of the transport's; it raises
    TransportError where that does not run."""

    open_stream: Callable[[PeerId, str], Awaitable[Stream]]
    spawn: Callable[[Callable[[], Awaitable[None]]], None]
    serve: Callable[[CircuitStream], None]
    hear: Callable[[PeerId, int, bytes], None]
    up: Callable[[PeerId], None]
    lost: Callable[[PeerId], None]
    note: Callable[[str], None]


class MemoryCircuits:
    """The circuits of one node, and the port of their ends. `unix_time`: its wall clock. `of_relay`: how many one relay
    may bring."""

    def __init__(
        self,
        me: PeerId,
        admission: HandshakeAdmission,
        hooks: CircuitHooks,
        unix_time: Callable[[], float] = time.time,
        of_relay: int = MAX_CIRCUITS_OF_PEER,
    ) -> None:
        self._me = me
        self._admission = admission
        self._hooks = hooks
        self._nonces = itertools.count(1)
        self._held: dict[PeerId, list[CircuitConnection]] = {}
        self.ends = CircuitEnds(
            self, lambda kind, error: hooks.note(kind), hooks.open_stream, unix_time, of_relay=of_relay
        )

    def __contains__(self, peer: PeerId) -> bool:
        """Return whether a circuit leads to `peer`."""
        return peer in self._held

    @property
    def peers(self) -> frozenset[PeerId]:
        """Return whom circuits lead to."""
        return frozenset(self._held)

    async def open(self, peer: PeerId, protocol: str) -> CircuitStream:
        """Open a stream over the oldest circuit to `peer`. Raises TransportError."""
        held = self._held.get(peer)
        if not held:
            raise TransportError("not connected")
        return await held[0].open(protocol)

    def broadcast(self, peer: PeerId, number: int, data: bytes) -> None:
        """Send a broadcast to `peer`, best effort."""
        for circuit in self._held.get(peer, [])[:1]:
            circuit.broadcast(number, data)

    def drop(self, peer: PeerId) -> None:
        """Close all circuits to `peer`."""
        for circuit in list(self._held.get(peer, [])):
            circuit.close()

    # -- the port of CircuitEnds

    async def upgraded(self, stream: Stream, peer: PeerId, *, dials: bool) -> CircuitConnection:
        """Return a connection with `peer`, which has proved itself, and been admitted. Raises TransportError."""
        frames = SealedFrames(stream, self._me, peer)
        mine = next(self._nonces).to_bytes(8, "big")
        if dials:
            await frames.send(FrameKind.HELLO, 0, mine)
            frames.rekey(mine + (await _next(frames, FrameKind.HELLO)).payload)
            await self._asks(frames, peer)
        else:
            its = (await _next(frames, FrameKind.HELLO)).payload
            await frames.send(FrameKind.HELLO, 0, mine)
            frames.rekey(its + mine)
            await self._decides(frames, peer)
        for _ in range(SETUPS):
            if dials:
                await frames.send(FrameKind.SETUP)
            await self._next_set_up(frames, peer)
            if not dials:
                await frames.send(FrameKind.SETUP)
        return CircuitConnection(
            frames,
            peer,
            dials=dials,
            serve=self._hooks.serve,
            hear=lambda number, data: self._hooks.hear(peer, number, data),
            over=self._over,
        )

    async def add(self, connection: CircuitConnection) -> None:
        """Hold it, and run it as long as the transport runs. Raises TransportError."""
        self._hooks.spawn(connection.run)
        self._held.setdefault(connection.peer, []).append(connection)
        self._hooks.up(connection.peer)
        await trio.lowlevel.checkpoint_if_cancelled()

    async def discard(self, connection: CircuitConnection) -> None:
        """Close one that was not added."""
        await connection.reset()

    def closed(self, connection: CircuitConnection) -> trio.Event:
        """Return what is set once it is over."""
        return connection.closed

    # -- insides

    def _over(self, connection: CircuitConnection) -> None:
        held = self._held.get(connection.peer, [])
        if connection in held:
            held.remove(connection)
            if not held:
                del self._held[connection.peer]
                self._hooks.lost(connection.peer)

    async def _asks(self, frames: SealedFrames, peer: PeerId) -> None:
        """Show our membership, and look at its. Raises TransportError."""
        admission = self._admission
        await frames.send(FrameKind.ADMISSION, 0, OPEN if admission.open else PRIVATE + admission.credentials())
        answer = await _next(frames, FrameKind.ADMISSION, FrameKind.REFUSAL)
        self._check_refusal(answer, peer)
        if admission.open:
            return
        try:
            admission.admit(peer, answer.payload[1:], None, trio.current_time())
        except AdmissionDeniedError as refused:
            await _refuse(frames, refused.answer)
            raise

    async def _next_set_up(self, frames: SealedFrames, peer: PeerId) -> None:
        """Wait for the next step of who is admitted; who dialled may still refuse. Raises TransportError."""
        self._check_refusal(await _next(frames, FrameKind.SETUP, FrameKind.REFUSAL), peer)

    def _check_refusal(self, frame: MuxFrame, peer: PeerId) -> None:
        if frame.kind == FrameKind.REFUSAL:
            heard = self._admission.heard(peer, frame.payload) if frame.payload and not self._admission.open else ""
            raise TransportError(heard or "it does not take us for a member")

    async def _decides(self, frames: SealedFrames, peer: PeerId) -> None:
        """Look at its membership, and show ours only to who may come. Raises TransportError."""
        admission, shown = self._admission, (await _next(frames, FrameKind.ADMISSION)).payload
        try:
            if admission.open != (shown[:1] == OPEN):
                why = "one of the two asks for membership, and the other has none"
                raise admission.refusal("refused_protocol", why, peer, None, trio.current_time())
            if not admission.open:
                admission.admit(peer, shown[1:], None, trio.current_time())
        except AdmissionDeniedError as refused:
            await _refuse(frames, refused.answer)
            raise
        await frames.send(FrameKind.ADMISSION, 0, OPEN if admission.open else PRIVATE + admission.credentials())


async def _refuse(frames: SealedFrames, answer: bytes) -> None:
    with suppress(TransportError):
        await frames.send(FrameKind.REFUSAL, 0, answer)
        await frames.receive()  # it hangs up when it has read that


async def _next(frames: SealedFrames, *kinds: FrameKind) -> MuxFrame:
    frame = await frames.receive()
    if frame is None or frame.kind not in kinds:
        raise TransportError("the handshake over a circuit failed")
    return frame
