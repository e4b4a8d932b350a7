"""Both ends of a dial-back (reachability/dialback.py): asking a connected peer to dial us, and dialling an asker."""

from collections.abc import Callable, Sequence
from typing import Final

import trio

from gossip.core.backoff import host_of
from gossip.core.errors import GossipError, Reason, RemoteError
from gossip.core.ids import PeerId
from gossip.core.messages import encode_refusal
from gossip.reachability.dialback import (
    DIALBACK_PROTOCOL,
    DIALBACK_S,
    MAX_ASK_BYTES,
    MAX_DIALBACKS,
    MAX_SIGHTING_BYTES,
    Grants,
    Sighting,
    encode_ask,
    encode_sighting,
    parse_ask,
    parse_sighting,
)
from gossip.session import FrameStream
from gossip.transport.base import Stream, Transport, TransportError

ANSWER_SLACK_BYTES: Final = 16
"""Bytes that a response adds around its answer."""


async def ask_to_dial_back(transport: Transport, peer: PeerId, ports: Sequence[int], patience_s: float) -> Sighting:
    """Ask a connected peer whether it reaches us at these ports. Raises RemoteError (Refused) or TransportError."""
    stream = await transport.open_stream(peer, DIALBACK_PROTOCOL)
    try:
        frames = FrameStream(stream, patience_s)
        await frames.send(encode_ask(ports))
        raw = await frames.receive(MAX_SIGHTING_BYTES + ANSWER_SLACK_BYTES)
        if raw is None:
            raise RemoteError(Reason.UNAVAILABLE, "the stream was closed without an answer")
        sighting = parse_sighting(raw, ports)
        await stream.close()
        return sighting
    except BaseException:
        with trio.CancelScope(shield=True):
            await stream.reset()
        raise


class DialBacks:
    """Dials askers back. `offence` is called with what is charged."""

    def __init__(self, transport: Transport, patience_s: float, offence: Callable[[PeerId, RemoteError], None]) -> None:
        self._transport = transport
        self._patience_s = patience_s
        self._offence = offence
        self._grants = Grants()
        self._under_way = 0

    async def handle_stream(self, stream: Stream) -> None:
        """Serve one stream to its end; raises nothing of the peer's or the network's making."""
        frames = FrameStream(stream, self._patience_s)
        try:
            raw = await frames.receive(MAX_ASK_BYTES)
            if raw is not None:
                await frames.send(await self._answer(stream.remote, parse_ask(raw)))
        except RemoteError as error:
            if error.reason is not Reason.TIMEOUT:
                self._offence(stream.remote, error)
            await stream.reset()
        except TransportError:
            await stream.reset()

    async def _answer(self, peer: PeerId, ports: Sequence[int]) -> bytes:
        try:
            return encode_sighting(await self._tried(peer, ports))
        except RemoteError as error:
            if error.reason is not Reason.UNAVAILABLE:
                self._offence(peer, error)
            return encode_refusal(error.reason, error.detail)

    async def _tried(self, peer: PeerId, ports: Sequence[int]) -> dict[str, bool]:
        addresses = [each for port in ports if (each := self._transport.address_at(peer, port)) is not None]
        if not addresses:
            raise RemoteError(Reason.UNAVAILABLE, "its connection comes from no address")
        self._grants.take(peer, host_of(addresses[0]), trio.current_time())
        if self._under_way >= MAX_DIALBACKS:
            raise RemoteError(Reason.UNAVAILABLE, "too many are dialled back now")
        found: dict[str, bool] = {}
        self._under_way += 1
        try:
            async with trio.open_nursery() as nursery:
                for address in addresses:
                    found[address.partition("/p2p/")[0]] = False
                    nursery.start_soon(self._try, address, found)
        finally:
            self._under_way -= 1
        return found

    async def _try(self, address: str, found: dict[str, bool]) -> None:
        try:
            with trio.fail_after(DIALBACK_S):
                await self._transport.probe(address)
        except (GossipError, trio.TooSlowError):
            return
        found[address.partition("/p2p/")[0]] = True
