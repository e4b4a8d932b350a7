"""Gets what the state machine wants from one neighbour: links, updates, and snapshots that other neighbours confirm.

Every blob may come from any peer that has it (blobs/multi_source_task.py): an update because all neighbours pull it, a
snapshot because newcomers seldom come alone, and all that come at one time are offered the same one (publisher.py).
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import assert_never

import trio

from gossip.blobs.attestation_task import SnapshotAttestation
from gossip.blobs.blob_cache_task import BlobCache, PartialBlob
from gossip.blobs.blob_fetch_task import BULK_BYTES, BlobFetch, fetch_blob
from gossip.blobs.multi_source_task import MultiSourceFetch
from gossip.context import ServiceContext
from gossip.core.api import BlobFile
from gossip.core.errors import RemoteError
from gossip.core.ids import Digest, PeerId
from gossip.core.limits import MAX_ENVELOPE_BYTES, MAX_LINKS
from gossip.core.messages import (
    HeadersRequest,
    Refused,
    Request,
    SnapshotRequest,
    parse_bytes_answer,
    parse_headers_answer,
)
from gossip.core.statements import SnapshotOffer, UpdateHeader
from gossip.session import ask_once, open_session
from gossip.updates.layer_plan import FetchLayer
from gossip.updates.neighbour import FetchHeaders, FetchPayload, FetchSnapshot, Work
from gossip.updates.traffic import Traffic


class Fetcher:
    """Fetches from one neighbour. `pulling`: whether a blob is on its way."""

    def __init__(
        self,
        peer: PeerId,
        context: ServiceContext,
        traffic: Traffic,
        blob_cache: BlobCache,
        attestation: SnapshotAttestation,
    ) -> None:
        self.pulling = False
        self._peer = peer
        self._context = context
        self._engine = context.engine
        self._traffic = traffic
        self._blob_cache = blob_cache
        self._attestation = attestation

    async def fetch(self, work: Work) -> tuple[UpdateHeader | SnapshotOffer, bytes | BlobFile | None] | None:
        """Do this work; return an update, or None where there is none to pass on. Raises RemoteError (also Refused) or
        TransportError."""
        match work:
            case FetchPayload(link=link) if link.body.kind == "genesis":
                return link, None
            case FetchPayload(link=link):
                return link, await self._pull(link.address, link.body.size, model=link.body.kind == "snapshot")
            case FetchHeaders(epoch=epoch, first=first, count=count):
                await self._links(HeadersRequest(epoch=epoch, first=first, count=count))
                return None
            case FetchSnapshot(epoch=epoch, seq=seq):
                offer = await self._offer(SnapshotRequest(epoch=epoch, seq=seq))
                await self._attestation.check(offer, seq if offer.epoch == epoch else 0)
                return offer, await self._pull(offer.address, offer.size, model=True)
            case _:
                assert_never(work)

    async def layer(self, work: FetchLayer) -> bytes:
        """Pull a refinement from its author, who so knows that we have it; nobody else is asked, and it is not served
        to others. Raises RemoteError (also Refused) or TransportError."""
        layer, context = work.link.body.layers[work.layer - 1], self._context
        began, bulk = trio.current_time(), layer.size >= BULK_BYTES
        async with open_session(context.transport, self._peer, context.config.request_timeout_s, bulk=bulk) as session:
            meter = self._traffic.received(snapshot=False)
            data = await fetch_blob(session, layer.address, layer.size, context.hasher, meter)
        now = trio.current_time()
        self._engine.heard(self._peer, now)
        self._traffic.layers.took(work, now - began, now)
        return data

    def forget(self) -> None:
        """Drop what was fetched from this neighbour: it is not served any more."""
        self._blob_cache.forget(self._peer)

    async def _links(self, request: HeadersRequest) -> None:
        raws = parse_headers_answer(await self._ask(request, (MAX_LINKS + 1) * MAX_ENVELOPE_BYTES))
        self._engine.on_links(self._peer, raws, trio.current_time())
        self._context.perform()

    async def _offer(self, request: SnapshotRequest) -> SnapshotOffer:
        raw = await self._ask(request, 2 * MAX_ENVELOPE_BYTES)
        place = request.epoch, request.seq
        return self._engine.on_offer(self._peer, parse_bytes_answer(raw, MAX_ENVELOPE_BYTES), place)

    async def _ask(self, request: Request, most: int) -> bytes | bytearray:
        context = self._context
        answer = await ask_once(context.transport, self._peer, request, context.config.request_timeout_s, most)
        self._engine.heard(self._peer, trio.current_time())
        return answer

    async def _pull(self, address: Digest, size: int, *, model: bool) -> bytes | BlobFile:
        """Pull a blob from its author, or from another peer that has it."""
        self._blob_cache.make_room(self._peer, self._engine.neighbours, trio.current_time())
        kept = self._blob_cache.begin(self._peer, address, size, model=model, now=trio.current_time())
        joint = MultiSourceFetch(self._context, self._traffic.speeds, self._pulling_of(kept), self._blob_cache.places)
        async with self._at_it(kept):
            whole, error = await joint.run(), joint.error
        if not whole:
            assert error is not None
            raise error
        if isinstance(error, RemoteError) and not isinstance(error, Refused):  # the others have helped out
            self._context.offence(self._peer, error)
        data = kept.download.finish()
        self._traffic.blob_fetched(trio.current_time() - kept.download.began)
        self._blob_cache.finish(self._peer, kept, data)
        return data

    def _pulling_of(self, kept: PartialBlob) -> BlobFetch:
        engine = self._engine
        return BlobFetch(
            download=kept.download,
            hasher=self._context.hasher,
            meter=self._traffic.received(snapshot=kept.model),
            me=engine.me,
            pullers=sorted({engine.me, *engine.neighbours} - {self._peer}),
            changed=kept.changed,
        )

    @asynccontextmanager
    async def _at_it(self, kept: PartialBlob) -> AsyncIterator[None]:
        async with kept.turn:
            self.pulling = True
            try:
                yield
            finally:
                self.pulling = False
                kept.used_at = trio.current_time()
