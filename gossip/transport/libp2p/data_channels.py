"""Data connections to peers: agreed on over libp2p, dialled the way that is known to work, kept and used again.

To send or fetch much, a peer opens a stream of `PROTOCOL` to another and sends `mode, token, secret`. The TCP
connection is dialled by the end that dialled the libp2p connection, to the same address, since the other may not be
reachable: mode 1 says "expect me", mode 2 "dial me", and nobody is ever made to dial an address that it has not dialled
itself. The peer answers `+` if it will. It comes in at the listening port, where its first byte tells it from libp2p.

Only the end that asked opens streams over it, one after another. Whatever goes wrong, the caller gets None and takes a
libp2p stream: a peer that does not speak this, or that refuses, is not asked again for a while.
"""

import os
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

import trio

from gossip.core.ids import PeerId
from gossip.core.rate_limit import KeyedTokenBucket
from gossip.transport.base import Stream, TransportError
from gossip.transport.libp2p.data_link import (
    MAGIC,
    SECRET_BYTES,
    TOKEN_BYTES,
    DataLink,
    DataStream,
    RecordKind,
    keys_of,
    masks_of,
)
from gossip.transport.libp2p.fault_guard import Faults
from gossip.transport.libp2p.tcp import BufferedTcpStream
from gossip.transport.pnet import NONCE_BYTES, PnetStream, PresharedKey
from gossip.transport.wire_bytes import WireBytes

PROTOCOL: Final = "/p2ptrain/1/data"
"""The stream protocol by which a connection is agreed on."""

EXPECT_ME, DIAL_ME = 1, 2
GRANTED: Final = b"+"
REFUSED: Final = b"-"

MAX_OF_PEER: Final = 4
"""Connections that a peer may have us serve: two pulls at once and two that linger. 3 MiB each at most."""

OPEN_S: Final = 5.0
"""For a connection to be agreed on and made: three round trips. Then a libp2p stream is taken instead."""

IDLE_S: Final = 30.0
"""How long one is kept for the next stream: rounds are seconds apart."""

SERVED_IDLE_S: Final = 2 * IDLE_S
"""How long the serving end keeps it: longer, so that it is never let go of there while it is taken here."""

RETRY_MIN_S: Final = 60.0
RETRY_MAX_S: Final = 3600.0
"""How long a peer with which none could be made is left alone: doubling, since where a firewall swallows the second
connection each attempt costs `OPEN_S`. Not after a refusal, which costs a round trip: it may be full for a moment."""

MAX_WITHOUT: Final = 64
"""Such peers that are remembered, eight times the default degree: only neighbours are worth a data connection."""

DRAIN_S: Final = 10.0
"""How long the far end may take to finish a stream after ours; then the connection is closed."""


STREAMS_BURST: Final = 40
STREAMS_PER_S: Final = 20.0
"""Streams that a peer may open over its data connections; for later ones it waits. As many as updates are taken of a
neighbour (follower_task.UPDATES_PER_S), each of which is a stream; one costs 0.3 ms."""


class _RefusedError(Exception):
    """The peer was asked for a data connection, and says that it serves none to us now."""


@dataclass(frozen=True, kw_only=True)
class Way:
    """How a peer is connected: the host and port that we dialled, or None where it dialled us."""

    dialled: tuple[str, int] | None


@dataclass(eq=False)
class _Expected:
    """A connection that is to come in."""

    peer: PeerId
    secret: bytes = field(repr=False)
    arrived: trio.Event = field(default_factory=trio.Event)
    link: DataLink | None = None
    given_up: bool = False

    async def come(self) -> DataLink | None:
        """Wait for it, and take it: it is the caller's now."""
        await self.arrived.wait()
        link, self.link = self.link, None
        return link


class Channels:
    """All data connections of a transport.

    `open_stream` opens a libp2p stream; `way` says how its connection came about; `serve` runs the handler on a stream
    that a peer opened; `keeps` says whether a peer is one that we grant connections to; `spawn` starts a task that
    outlives the caller; `psk`: behind which all of it stands; `wire` counts the bytes of all connections.
    """

    def __init__(
        self,
        *,
        me: PeerId,
        faults: Faults,
        open_stream: Callable[[PeerId, str], Awaitable[tuple[Stream, Way]]],
        serve: Callable[[str, Stream], Awaitable[None]],
        keeps: Callable[[PeerId], bool],
        spawn: Callable[[Callable[[], Awaitable[None]]], None],
        wire: WireBytes,
        psk: PresharedKey | None = None,
    ) -> None:
        self._me = me
        self._faults = faults
        self._open_stream = open_stream
        self._serve = serve
        self._keeps = keeps
        self._spawn = spawn
        self._wire = wire
        self._psk = psk
        self._making: dict[trio.CancelScope, PeerId] = {}
        """What is being agreed on or dialled, with whom: it ends with the peer."""
        self._expected: dict[bytes, _Expected] = {}
        self._idle: dict[PeerId, list[DataLink]] = {}
        self._links: dict[DataLink, PeerId] = {}
        self._served: Counter[PeerId] = Counter()
        self._without: dict[PeerId, tuple[float, float]] = {}
        """Peers with which none could be made, until when they are left alone, and how long after the next failure. A
        peer that comes or goes is forgotten; one that went while it was tried is remembered, hence MAX_WITHOUT."""
        self._pace = KeyedTokenBucket(burst=STREAMS_BURST, per_s=STREAMS_PER_S)

    async def open(self, peer: PeerId, protocol: str) -> Stream | None:
        """A stream over a data connection; None where there is none to be had."""
        link = self._take_idle(peer) or await self._made(peer)
        if link is None:
            return None
        try:
            await link.send(RecordKind.OPEN, protocol.encode("ascii"))
        except TransportError:
            self._forget(link)
            return None
        except BaseException:
            self._forget(link)
            raise
        stream = DataStream(link, peer)
        self._spawn(lambda: self._give_back(peer, link, stream))
        return stream

    def came(self, peer: PeerId) -> None:
        """A first connection is up: what could not be had before may be now."""
        self._without.pop(peer, None)

    def drop(self, peer: PeerId) -> None:
        """Close all channels with a peer that is gone or was disconnected."""
        self._idle.pop(peer, None)
        self._without.pop(peer, None)
        for scope, whose in self._making.items():
            if whose == peer:
                scope.cancel()
        for link, whose in list(self._links.items()):
            if whose == peer:
                link.abandon()
                del self._links[link]

    def close(self) -> None:
        """Close everything."""
        for peer in set(self._links.values()):
            self.drop(peer)

    # -- the end that opens streams

    def _take_idle(self, peer: PeerId) -> DataLink | None:
        idle = self._idle.get(peer, [])
        while idle:
            link = idle.pop()
            if link.quiet and trio.current_time() - link.idle_since < IDLE_S:
                return link
            self._forget(link)
        return None

    async def _made(self, peer: PeerId) -> DataLink | None:
        until, pause_s = self._without.get(peer, (0.0, RETRY_MIN_S))
        if until > trio.current_time():
            return None
        link, then_s = None, min(2 * pause_s, RETRY_MAX_S)
        try:
            with trio.move_on_after(OPEN_S) as scope, self._while_there(peer, scope):
                link = await self._agreed(peer)
        except _RefusedError:
            pause_s = then_s = RETRY_MIN_S
        except (TransportError, OSError) as error:
            self._faults.note("data_open", error)
        if link is None:
            self._without[peer] = trio.current_time() + pause_s, then_s
            while len(self._without) > MAX_WITHOUT:
                del self._without[next(iter(self._without))]
        else:
            self._without.pop(peer, None)
        return link

    async def _agreed(self, peer: PeerId) -> DataLink | None:
        token, secret = os.urandom(TOKEN_BYTES), os.urandom(SECRET_BYTES)
        anchor, way = await self._open_stream(peer, PROTOCOL)
        expected = _Expected(peer, secret)
        if way.dialled is None:
            self._expected[token] = expected
        try:
            mode = DIAL_ME if way.dialled is None else EXPECT_ME
            await anchor.send_all(bytes([mode]) + token + secret)
            if await anchor.receive_some(1) != GRANTED:
                raise _RefusedError
            if way.dialled is not None:
                return await self._dialled(way.dialled, token, secret, peer)
            return await expected.come()
        finally:
            self._give_up(token, expected)
            await anchor.close()

    async def _give_back(self, peer: PeerId, link: DataLink, stream: DataStream) -> None:
        """Once the stream is over at both ends, its connection is free for the next one."""
        await stream.released.wait()
        free = False
        with trio.move_on_after(DRAIN_S):
            free = await stream.drain()
        if free and link in self._links and len(self._idle.setdefault(peer, [])) < MAX_OF_PEER:
            link.idle_since = trio.current_time()
            self._idle[peer].append(link)
        else:
            self._forget(link)

    # -- the end that serves them

    async def serve(self, anchor: Stream, way: Way) -> None:
        """A peer wants a connection. Raises TransportError."""
        peer = anchor.remote
        with trio.move_on_after(OPEN_S) as scope:
            ask = await _exactly(anchor, 1 + TOKEN_BYTES + SECRET_BYTES)
        if scope.cancelled_caught:
            raise TransportError("it does not say what it wants")
        mode, token, secret = ask[0], ask[1 : 1 + TOKEN_BYTES], ask[1 + TOKEN_BYTES :]
        fits = mode == EXPECT_ME if way.dialled is None else mode == DIAL_ME
        if not (fits and self._keeps(peer) and self._served[peer] < MAX_OF_PEER and token not in self._expected):
            await anchor.send_all(REFUSED)
            return
        self._served[peer] += 1
        try:
            link = await self._granted(anchor, way, token, secret)
            if link is not None:
                await self._serve_link(peer, link)
        finally:
            self._served[peer] -= 1
            self._served += Counter()  # drops the zeros

    async def _granted(self, anchor: Stream, way: Way, token: bytes, secret: bytes) -> DataLink | None:
        peer, expected = anchor.remote, _Expected(anchor.remote, secret)
        if way.dialled is None:
            self._expected[token] = expected
        try:
            with trio.move_on_after(OPEN_S) as scope, self._while_there(peer, scope):
                await anchor.send_all(GRANTED)
                await anchor.close()
                if way.dialled is not None:
                    return await self._dialled(way.dialled, token, secret, peer)
                return await expected.come()
            return None
        except OSError as error:
            raise TransportError("nothing answers where the peer was dialled") from error
        finally:
            self._give_up(token, expected)

    async def _serve_link(self, peer: PeerId, link: DataLink) -> None:
        try:
            while (protocol := await self._opened(link)) is not None:
                if not self._keeps(peer):
                    return  # it was granted to a channel that we kept; a peer that asks anew is told
                await trio.sleep(self._pace.reserve(peer, trio.current_time()))
                stream = DataStream(link, peer)
                await self._serve(protocol, stream)
                with trio.move_on_after(DRAIN_S):
                    if await stream.drain():
                        continue
                return
        except TransportError:
            return  # its end, or the connection's
        finally:
            self._forget(link)

    async def _opened(self, link: DataLink) -> str | None:
        """Return the protocol of the next stream; None when no more will come."""
        with trio.move_on_after(SERVED_IDLE_S):
            record = await link.receive()
            if record is None:
                return None
            if record[0] is not RecordKind.OPEN or not record[1].isascii():
                self._faults.note("data_record")
                return None
            return record[1].decode("ascii")
        return None

    # -- both

    @contextmanager
    def _while_there(self, peer: PeerId, scope: trio.CancelScope) -> Iterator[None]:
        """Cancel the scope when the peer goes: no channel is made to a peer that was disconnected."""
        self._making[scope] = peer
        try:
            yield
        finally:
            del self._making[scope]

    async def admit(self, stream: BufferedTcpStream) -> DataLink | None:
        """A connection came in that began with `MAGIC`; None where nobody expects it. Raises TransportError."""
        preamble = await stream.read(len(MAGIC) + TOKEN_BYTES)
        expected = self._expected.pop(preamble[len(MAGIC) :], None)
        if expected is None or not preamble.startswith(MAGIC):
            self._faults.note("data_token")
            return None
        socket, left = stream.taken_over()
        receive_key, send_key = keys_of(expected.secret, expected.peer, self._me)
        masks = None
        if self._psk is not None:
            await stream.write(b"")  # our nonce, unless that was sent when the caller's came
            theirs, ours = masks_of(self._psk, expected.secret, expected.peer, self._me)
            masks = ours, theirs
        link = DataLink(socket, left, send_key=send_key, receive_key=receive_key, wire=self._wire, masks=masks)
        await self._greet(link, expected.peer)
        if expected.given_up:
            self._forget(link)
            return None
        expected.link = link
        expected.arrived.set()
        return link

    async def _dialled(self, where: tuple[str, int], token: bytes, secret: bytes, peer: PeerId) -> DataLink:
        socket = await trio.open_tcp_stream(*where)
        send_key, receive_key = keys_of(secret, self._me, peer)
        masks = None if self._psk is None else masks_of(self._psk, secret, self._me, peer)
        link = DataLink(socket, b"", send_key=send_key, receive_key=receive_key, wire=self._wire, masks=masks)
        preamble = MAGIC + token if self._psk is None else PnetStream(self._psk).hidden(MAGIC + token)
        try:
            self._wire.sent += len(preamble)
            await socket.send_all(preamble)
            if self._psk is not None:
                await _exactly(socket, NONCE_BYTES)  # all that is behind the veil that way; no record before it
                self._wire.received += NONCE_BYTES
            await self._greet(link, peer)
        except trio.BrokenResourceError as error:
            link.abandon()
            raise TransportError("the data connection was refused") from error
        except BaseException:
            link.abandon()
            raise
        return link

    async def _greet(self, link: DataLink, peer: PeerId) -> None:
        """Both ends show that they hold the keys."""
        await link.send(RecordKind.HELLO)
        record = await link.receive()
        if record is None or record[0] is not RecordKind.HELLO:
            link.abandon()
            raise TransportError("the data connection did not greet")
        self._links[link] = peer

    def _give_up(self, token: bytes, expected: _Expected) -> None:
        """Nobody waits for it any more: one that is here and was not taken is closed, as is one that still comes."""
        if self._expected.get(token) is expected:
            del self._expected[token]
        expected.given_up = True
        if expected.link is not None:
            self._forget(expected.link)

    def _forget(self, link: DataLink) -> None:
        link.abandon()
        self._links.pop(link, None)


async def _exactly(stream: Stream | trio.SocketStream, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = await stream.receive_some(size - len(data))
        if not piece:
            raise TransportError("the stream ended early")
        data += piece
    return data
