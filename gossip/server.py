"""Answers neighbours' requests, and strangers' hellos, goodbyes and find requests.

Every answer that can be given is given from memory at once; only a snapshot may have to be made first. A request that
breaks the protocol is charged and ends its stream; one that cannot be granted is refused on the stream. No peer can
occupy us alone: at most MAX_STREAMS_PER_PEER streams of one are served, and their requests at a steady pace. Nor can
strangers together (core/request_limit.py).
"""

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, assert_never

import trio

from gossip.allreduce.allreduce_task import AllReducer
from gossip.blobs.blob import chunk_of
from gossip.blobs.blob_cache_task import BlobCache
from gossip.blobs.snapshots_task import Snapshots
from gossip.class_statistics.statement import SharedPayload
from gossip.context import ServiceContext
from gossip.core.errors import Reason, RemoteError
from gossip.core.identity import peer_id_of
from gossip.core.ids import Digest, PeerId
from gossip.core.limits import (
    MAX_STREAMS_PER_PEER,
    PAUSE_PROTOCOL,
    SHIFT_PROTOCOL,
    STATISTICS_PROTOCOL,
    STREAM_PROTOCOL,
)
from gossip.core.member_messages import BucketsRequest, MembershipRequest, RosterRequest, TermsRequest
from gossip.core.messages import (
    ChunkRequest,
    FindRequest,
    GoodbyeRequest,
    HeadersRequest,
    HelloRequest,
    ManifestRequest,
    PartRequest,
    PauseRequest,
    Request,
    SecureRequest,
    ShiftRequest,
    SnapshotRequest,
    StateRequest,
    StatisticsRequest,
    encode_answer,
    encode_refusal,
    parse_request,
)
from gossip.core.request_limit import SMALL_CHUNK_BYTES, RequestLimit
from gossip.membership.membership_sync_task import MembershipSync
from gossip.regions.regional_models_task import RegionalExchange
from gossip.secure_aggregation.secure_sum_task import SecureSummer
from gossip.session import serve
from gossip.transport.base import Stream, TransportError
from gossip.updates.publisher import Payload, Publisher
from gossip.updates.throughput import Transfer
from gossip.updates.traffic import Traffic

_PROTOCOLS: Final = (STREAM_PROTOCOL, PAUSE_PROTOCOL, SHIFT_PROTOCOL, STATISTICS_PROTOCOL)
"""Of the streams that are served."""


@dataclass
class _Conversation:
    """A stream that is served, and the blob that is sent over it, if any. It is over when the peer closes the stream:
    our own end would only know when the network took the bytes from us."""

    peer: PeerId
    upload: Transfer | None = None
    address: Digest | None = None
    sent: dict[int, int] = field(default_factory=dict)
    """Bytes sent, by chunk."""


class Server:
    """The answering end of all streams."""

    def __init__(
        self,
        context: ServiceContext,
        publisher: Publisher,
        traffic: Traffic,
        snapshots: Snapshots,
        allreducer: AllReducer,
        summer: SecureSummer,
        regional: RegionalExchange,
        membership_sync: MembershipSync | None,
    ) -> None:
        self._context = context
        self._engine = context.engine
        self._publisher = publisher
        self._traffic = traffic
        self._snapshots = snapshots
        self._allreducer = allreducer
        self._summer = summer
        self._regional = regional
        self._membership_sync = membership_sync
        self.blob_cache = BlobCache(
            most=context.config.max_payload_bytes, count=context.config.degree, file_for=context.hasher.new_file
        )
        self.statistics: SharedPayload | None = None
        """Class statistics of our data for neighbours that ask; None: there are none."""
        self._streams: Counter[PeerId] = Counter()
        self._budget = RequestLimit()

    @property
    def serving(self) -> int:
        """How many streams are open."""
        return self._streams.total()

    async def handle_stream(self, protocol: str, stream: Stream) -> None:
        """Serve one stream to its end; raises nothing of the peer's or the network's making."""
        peer = stream.remote
        if protocol not in _PROTOCOLS or self._streams[peer] >= MAX_STREAMS_PER_PEER:
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
            self._uploaded(talk, whole=orderly, read=orderly)
            self._streams[peer] -= 1
            self._streams += Counter()  # drops the zeros
            self._context.changed.beat()

    async def _answer(self, talk: _Conversation, raw: bytes | bytearray) -> bytes:
        request, peer = parse_request(raw), talk.peer
        now = trio.current_time()
        self._engine.heard(peer, now)
        try:
            if not isinstance(request, ChunkRequest):
                await _pause(self._budget.reserve(peer, now, known=self._knows(peer)))
            answer = await self._grant(talk, request)
        except RemoteError as error:
            if error.reason is not Reason.UNAVAILABLE:
                self._context.offence(peer, error)
            answer = encode_refusal(error.reason, error.detail)
        finally:
            self._context.perform()
        if isinstance(request, ChunkRequest) and len(answer) < SMALL_CHUNK_BYTES:
            await self._take_time(peer)
        return answer

    def _knows(self, peer: PeerId) -> bool:
        """Whether a peer is not a stranger: in a private swarm nobody is one, for a key costs a use of an invite."""
        return self._engine.serves(peer) or self._membership_sync is not None

    async def _take_time(self, peer: PeerId) -> None:
        """Wait before an answer that carries almost no bytes: the link does not pace these."""
        with suppress(RemoteError):  # it has been answered already
            await _pause(self._budget.reserve(peer, trio.current_time(), known=self._knows(peer)))

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
            case FindRequest():
                return encode_answer(*self._engine.on_find(peer, request, trio.current_time()))
            case MembershipRequest() | BucketsRequest() | RosterRequest() | TermsRequest():
                if self._membership_sync is None:
                    raise RemoteError(Reason.UNAVAILABLE, "the swarm is open to all")
                return self._membership_sync.answer(peer, request)
        if peer in self._engine.listeners:
            self._check_listens(peer, request)
        elif self._regional.bridges_to(peer):
            self._check_of_region(peer, request)
        elif peer not in self._engine.neighbours:
            raise RemoteError(Reason.UNAVAILABLE, "neighbours only: say hello first")
        elif not self._engine.serves_neighbour(peer):
            raise RemoteError(Reason.UNAVAILABLE, "a neighbour that says it is of another region by now")
        if isinstance(request, ManifestRequest | SnapshotRequest) and self._context.quiet():
            raise RemoteError(Reason.UNAVAILABLE, "quiet hours")  # chunks under way may finish
        match request:
            case HeadersRequest(epoch=epoch, first=first, count=count):
                return encode_answer(self._publisher.links(epoch, first, count))
            case SnapshotRequest(epoch=epoch, seq=seq):
                return await self._offer(epoch, seq)
            case StateRequest():
                return encode_answer(self._witness(request))
            case ManifestRequest(address=address):
                return await self._manifest(talk, address)
            case ChunkRequest(address=address, index=index):
                return encode_answer(await self._chunk(talk, address, index))
            case PartRequest(envelope=envelope):
                self._allreducer.on_part(peer, envelope)
                return encode_answer()
            case SecureRequest(envelope=envelope):
                self._summer.on_statement(peer, envelope)
                return encode_answer()
            case PauseRequest():
                self._engine.on_pause(peer, request, trio.current_time())
                self._allreducer.look_again()
                self._summer.look_again()
                return encode_answer()
            case ShiftRequest():
                self._engine.on_shift(peer, request, trio.current_time())
                return encode_answer()
            case StatisticsRequest():
                return self._statistics(peer)
            case _:
                assert_never(request)

    def _check_listens(self, peer: PeerId, request: Request) -> None:
        if isinstance(request, PartRequest | SecureRequest | PauseRequest | ShiftRequest):
            raise RemoteError(
                Reason.WRONG_ROLE, "a part of an exchange or a sum, a pause, or a shift, from who trains nothing"
            )

    def _check_of_region(self, peer: PeerId, request: Request) -> None:
        """Raise RemoteError for what a member of another region does not get: all but a region's model that may leave
        it."""
        if not isinstance(request, ManifestRequest | ChunkRequest) or not self._regional.gives(request.address, peer):
            raise RemoteError(Reason.UNAVAILABLE, "another region gets regions' models, and nothing else")

    def _statistics(self, peer: PeerId) -> bytes:
        if self.statistics is None or peer in self._engine.listeners:
            raise RemoteError(Reason.UNAVAILABLE, "no statistics are shared")
        return encode_answer(self.statistics.envelope, self.statistics.payload)

    async def _offer(self, epoch: int, seq: int) -> bytes:
        offer = await self._snapshots.offer(epoch, seq)
        self._traffic.snapshot_served()
        return encode_answer(offer.raw)

    def _witness(self, asked: StateRequest) -> Digest:
        neighbour = self._engine.neighbour(peer_id_of(asked.key))
        held = neighbour.witness(asked.epoch, asked.seq, asked.least) if neighbour else None
        if held is None:
            raise RemoteError(Reason.UNAVAILABLE, "we cannot tell what that must be")
        return held

    async def _manifest(self, talk: _Conversation, address: Digest) -> bytes:
        self._uploaded(talk, whole=False, read=True)
        if address in self._allreducer.blobs:  # a part of it may be taken: its size says nothing of the link's speed
            manifest = self._allreducer.blobs.manifest(address)
        elif address in self._summer.blobs:
            manifest = self._summer.blobs.manifest(address)
        elif (regional := self._regional.payload_at(address)) is not None:
            manifest = regional.manifest
        elif address in self._publisher.blobs:
            manifest = self._publisher.blobs.manifest(address)
            self._engine.on_blob_asked(talk.peer, address)
            talk.upload = self._traffic.speeds.begin(talk.peer, "sent", manifest.size, trio.current_time())
            talk.address = address
        else:  # the others take what they lack
            manifest = self.blob_cache.manifest(address)
        first = await self._chunk(talk, address, 0) if len(manifest.chunks) == 1 else b""
        return encode_answer(manifest.encode(), first)

    def _uploaded(self, talk: _Conversation, *, whole: bool, read: bool) -> None:
        """Note that a blob of ours is sent, or given up. A peer that ends its stream in an orderly way has what it
        wants. `read`: what was sent of it has arrived."""
        now = trio.current_time()
        if talk.upload is not None and talk.address is not None:
            carried = sum(talk.sent.values())
            self._traffic.speeds.end(talk.upload, now, whole=whole, carried=carried)
            self._traffic.layer_ended(talk.upload, talk.address, now, carried=carried if read else None)
        if whole and talk.address is not None and talk.sent:
            self._traffic.delivered(talk.peer, talk.address, now)
        talk.upload = talk.address = None
        talk.sent.clear()

    async def _chunk(self, talk: _Conversation, address: Digest, index: int) -> bytes | memoryview:
        if address in self._allreducer.blobs:
            part = self._allreducer.blobs.chunk(address, index)
            self._traffic.passed_on(len(part), snapshot=False)
            self._allreducer.sent(talk.peer, address, index)
            return part
        if address in self._summer.blobs:
            piece = self._summer.blobs.chunk(address, index)
            self._traffic.passed_on(len(piece), snapshot=False)
            return piece
        if (regional := self._regional.payload_at(address)) is not None:
            return self._regional_chunk(talk.peer, address, regional, index)
        if address in self._publisher.blobs:
            return self._own_chunk(talk, address, index)
        others = await self.blob_cache.chunk(address, index)
        self._traffic.passed_on(len(others), snapshot=self.blob_cache.is_model(address))
        return others

    def _regional_chunk(self, peer: PeerId, address: Digest, payload: Payload, index: int) -> bytes | memoryview:
        chunk = chunk_of(payload.manifest, payload.data, index)
        self._regional.check_sends(address, peer, len(chunk))
        self._traffic.passed_on(len(chunk), snapshot=False)
        return chunk

    def _own_chunk(self, talk: _Conversation, address: Digest, index: int) -> bytes | memoryview:
        blobs = self._publisher.blobs
        chunk = blobs.chunk(address, index)
        self._traffic.sent(address, len(chunk))
        if talk.address == address:
            talk.sent[index] = len(chunk)
            if len(talk.sent) == len(blobs.manifest(address).chunks):
                self._traffic.delivered(talk.peer, address, trio.current_time())
        return chunk


async def _pause(seconds: float) -> None:
    """Sleep, where there is something to wait for: the stream lets others run before and after."""
    if seconds > 0:
        await trio.sleep(seconds)
