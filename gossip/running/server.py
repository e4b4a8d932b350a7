"""Answers neighbours' requests: hellos, links, snapshots, manifests, chunks, goodbyes.

Every answer that can be given is given from memory at once; only a snapshot may have to be cut first. A request that
breaks the protocol is charged and ends its stream, one that cannot be granted is refused on the stream. No peer can
occupy us alone: at most MAX_STREAMS_PER_PEER streams of one are served, and their requests at a steady pace.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Final, assert_never

import trio

from gossip.errors import Reason, RemoteError
from gossip.ids import Digest, PeerId
from gossip.protocol.limits import MAX_STREAMS_PER_PEER, STREAM_PROTOCOL
from gossip.protocol.messages import (
    ChunkRequest,
    GoodbyeRequest,
    HelloRequest,
    LinksRequest,
    ManifestRequest,
    Request,
    SnapshotRequest,
    encode_answer,
    encode_refusal,
    parse_request,
)
from gossip.protocol.quota import Quota
from gossip.protocol.speeds import Transfer
from gossip.running.context import Context
from gossip.running.session import serve
from gossip.running.snapshots import Snapshots
from gossip.transport.base import Stream, TransportError

REQUESTS_BURST: Final = 40
REQUESTS_PER_S: Final = 40.0
"""Requests of a peer that are answered at once, but for chunks, which the link paces: twice the updates that anyone
takes of us. Each costs 0.5 ms, and one stream of them would take a core's half."""


@dataclass
class _Conversation:
    """A stream that is served, and the blob that goes out over it, if any. It is over when the peer closes the stream:
    our own end would only know when the network took the bytes from us."""

    peer: PeerId
    upload: Transfer | None = None


class Server:
    """The answering end of all streams."""

    def __init__(self, context: Context, snapshots: Snapshots) -> None:
        self._context = context
        self._engine = context.engine
        self._snapshots = snapshots
        self._streams: Counter[PeerId] = Counter()
        self._pace = Quota(burst=REQUESTS_BURST, per_s=REQUESTS_PER_S)

    @property
    def serving(self) -> int:
        """How many streams are open."""
        return self._streams.total()

    async def handle_stream(self, protocol: str, stream: Stream) -> None:
        """Serve one stream to its end; raises nothing of the peer's or the network's making."""
        peer = stream.remote
        if protocol != STREAM_PROTOCOL or self._streams[peer] >= MAX_STREAMS_PER_PEER:
            self._context.offence(peer, RemoteError(Reason.PROTOCOL, "too many streams, or one for nothing we know"))
            await stream.reset()
            return
        self._streams[peer] += 1
        talk, orderly = _Conversation(peer), False
        try:
            await serve(stream, lambda raw: self._answer(talk, raw), self._context.config.request_timeout_s)
            orderly = True
        except RemoteError as error:
            if error.reason is not Reason.TIMEOUT:  # a puller that pauses, or is gone, harms nobody
                self._context.offence(peer, error)
            await stream.reset()
        except TransportError:
            await stream.reset()
        finally:
            self._uploaded(talk, whole=orderly)
            self._streams[peer] -= 1
            self._streams += Counter()  # drops the zeros
            self._context.changed.beat()

    async def _answer(self, talk: _Conversation, raw: bytes) -> bytes:
        request, peer = parse_request(raw), talk.peer
        now = trio.current_time()
        self._engine.heard(peer, now)
        if not isinstance(request, ChunkRequest):
            await trio.sleep(self._pace.reserve(peer, now))
        try:
            return await self._grant(talk, request)
        except RemoteError as error:
            if error.reason is not Reason.UNAVAILABLE:
                self._context.offence(peer, error)
            return encode_refusal(error.reason, error.detail)
        finally:
            self._context.perform()

    async def _grant(self, talk: _Conversation, request: Request) -> bytes:
        peer = talk.peer
        match request:
            case HelloRequest(hello=hello):
                answer = self._engine.on_hello(peer, hello, trio.current_time())
                self._context.greeted(peer)
                return encode_answer(answer)
            case GoodbyeRequest(envelope=envelope):
                self._engine.on_goodbye(peer, envelope, trio.current_time())
                return encode_answer()
        if peer not in self._engine.neighbours:
            raise RemoteError(Reason.UNAVAILABLE, "neighbours only: say hello first")
        match request:
            case LinksRequest(epoch=epoch, first=first, count=count):
                return encode_answer(self._engine.publisher.links(epoch, first, count))
            case SnapshotRequest(epoch=epoch, seq=seq):
                return await self._offer(epoch, seq)
            case ManifestRequest(address=address):
                return self._manifest(talk, address)
            case ChunkRequest(address=address, index=index):
                return encode_answer(self._chunk(peer, address, index))
            case _:
                assert_never(request)

    async def _offer(self, epoch: int, seq: int) -> bytes:
        offer = await self._snapshots.offer(epoch, seq)
        self._engine.court.stats.snapshots_served += 1
        return encode_answer(offer.raw)

    def _manifest(self, talk: _Conversation, address: Digest) -> bytes:
        manifest = self._engine.publisher.blobs.manifest(address)
        self._uploaded(talk, whole=False)
        talk.upload = self._engine.traffic.speeds.begin(talk.peer, "sent", manifest.size, trio.current_time())
        only = self._chunk(talk.peer, address, 0) if len(manifest.chunks) == 1 else b""
        return encode_answer(manifest.encode(), only)

    def _uploaded(self, talk: _Conversation, *, whole: bool) -> None:
        if talk.upload is not None:
            self._engine.traffic.speeds.end(talk.upload, trio.current_time(), whole=whole)
            talk.upload = None

    def _chunk(self, peer: PeerId, address: Digest, index: int) -> memoryview:
        chunk = self._engine.publisher.blobs.chunk(address, index)
        self._engine.traffic.sent(peer, address, len(chunk), last=index + 1)
        return chunk
