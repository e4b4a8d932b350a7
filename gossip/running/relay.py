"""The relay's part of relaying (protocol/relaying.py): connects two neighbours, and carries bytes between them."""

from contextlib import suppress

import trio

from gossip.errors import GossipError, Reason, RemoteError
from gossip.ids import PeerId
from gossip.protocol.messages import encode_answer, encode_refusal, parse_empty_answer
from gossip.protocol.relaying import (
    CIRCUIT_IDLE_S,
    CIRCUIT_PIECE_BYTES,
    MAX_RELAY_ANSWER_BYTES,
    MAX_RELAY_BYTES,
    RELAY_S,
    RELAYED_PROTOCOL,
    Circuits,
    encode_relayed,
    parse_relay_ask,
)
from gossip.running.context import Context
from gossip.running.session import FrameStream
from gossip.transport.base import Stream, TransportError


class Relay:
    """Answers whoever asks, and refuses all where `network.relay` is not set."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self.circuits = Circuits(context.config.relay_bytes_per_s)

    async def handle_stream(self, stream: Stream) -> None:
        """Serve one stream to its end; raises nothing of the peer's or the network's making."""
        peer, frames = stream.remote, FrameStream(stream, RELAY_S)
        try:
            raw = await frames.receive(MAX_RELAY_BYTES)
            if raw is None:
                return
            target = parse_relay_ask(raw)
            try:
                self._check(peer)
                if target is None:
                    await frames.send(encode_answer())
                else:
                    await self._connect(stream, frames, target)
            except RemoteError as error:
                if error.reason is not Reason.UNAVAILABLE:
                    self._context.offence(peer, error)
                await frames.send(encode_refusal(error.reason, error.detail))
        except RemoteError as error:
            if error.reason is not Reason.TIMEOUT:
                self._context.offence(peer, error)
            await stream.reset()
        except TransportError:
            await stream.reset()

    def _check(self, peer: PeerId) -> None:
        if not self._context.config.relay:
            raise RemoteError(Reason.UNAVAILABLE, "it does not relay (network.relay)")
        if peer not in self._context.engine.neighbours:
            raise RemoteError(Reason.UNAVAILABLE, "it relays between its neighbours")
        if self._context.reach.unreachable(trio.current_time()):
            raise RemoteError(Reason.UNAVAILABLE, "nobody can dial it either")

    async def _connect(self, near: Stream, frames: FrameStream, target: PeerId) -> None:
        asker = near.remote
        if target == asker or target not in self._context.engine.neighbours:
            raise RemoteError(Reason.UNAVAILABLE, "it relays between its neighbours")
        self.circuits.take(asker, target, trio.current_time())
        try:
            far = await self._far_end(asker, target)
            try:
                await frames.send(encode_answer())
                await self._carry(near, far)
            finally:
                with trio.CancelScope(shield=True):
                    await far.reset()
                    await near.reset()
        finally:
            self.circuits.leave(asker, target)

    async def _far_end(self, asker: PeerId, target: PeerId) -> Stream:
        """A stream to the far end that has taken the circuit. RemoteError(UNAVAILABLE): it is not the asker's fault."""
        far: Stream | None = None
        try:
            far = await self._context.transport.open_stream(target, RELAYED_PROTOCOL)
            frames = FrameStream(far, RELAY_S)
            await frames.send(encode_relayed(asker))
            parse_empty_answer(await frames.receive(MAX_RELAY_ANSWER_BYTES) or b"")
            return far
        except BaseException as error:
            if far is not None:
                with trio.CancelScope(shield=True):
                    await far.reset()
            if isinstance(error, GossipError):
                raise RemoteError(Reason.UNAVAILABLE, "the far end does not take the circuit") from error
            raise

    async def _carry(self, one: Stream, other: Stream) -> None:
        """Both ways, until either end is done with it."""
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
