"""Pulls one blob, or a part of one, over one stream: the manifest, then chunks, each verified as it comes.

Requests limit what is under way. A few chunks are requested ahead, so that neither end waits for the other, and never
more; while one is being verified, the next comes in. The `Download` says which chunk is next: it may be pulled from
several sources at once (multi_source_task.py), each over a stream of its own.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import trio

from gossip.blobs.download import Download
from gossip.blobs.hashing_task import Hasher
from gossip.context import Notifier
from gossip.core.ids import Digest, PeerId
from gossip.core.limits import CHUNK_BYTES, KIB
from gossip.core.messages import ChunkRequest, ManifestRequest, Refused, parse_chunk_answer, parse_manifest_answer
from gossip.session import Session

BULK_BYTES: Final = 64 * KIB
"""Blobs from this size on are worth a data connection: agreeing on one takes three round trips, once, and every libp2p
stream takes as many. In a swarm of four that exchanges 120 kB three times a second, it saves a node 8 of the 31 ms of
its event loop that a round takes."""

WAITED_S: Final = 1.0
"""Seconds. After so long a refusal means that the other end waited (blob_cache.HOLD_S): it is about to get the
chunk."""

Meter = Callable[[int], None]
"""Called with the number of verified bytes as they come in."""


@dataclass(frozen=True, kw_only=True, eq=False)
class BlobFetch:
    """A download, and what all its sources share."""

    download: Download
    hasher: Hasher
    meter: Meter
    me: PeerId
    pullers: Sequence[PeerId] = ()
    """Peers that are known to pull it, and ourselves, in order."""
    changed: Notifier = field(default_factory=Notifier)
    """Beats when a chunk has come, and when a source has left."""


async def fetch_blob(
    session: Session,
    address: Digest,
    size: int,
    hasher: Hasher,
    meter: Meter,
    span: range | None = None,
    chunk_bytes: int = CHUNK_BYTES,
) -> bytes:
    """Return the blob `address`, of exactly `size` bytes, or the chunks `span` of it, from one source.

    Raises RemoteError (also Refused) or TransportError.
    """
    source = PeerId("")  # there is no other source
    began = trio.current_time()
    download = Download(address, size, author=source, began=began, span=span, chunk_bytes=chunk_bytes)
    pulling = BlobFetch(download=download, hasher=hasher, meter=meter, me=source)
    await fetch_blob_from(session, source, pulling)
    data = download.finish()
    assert isinstance(data, bytes), "it was given no file"
    return data


async def fetch_blob_from(session: Session, source: PeerId, pulling: BlobFetch) -> None:
    """Request what is missing from `source` until there is nothing to request, or it has nothing.

    Raises RemoteError (also Refused, by the author or for the manifest) or TransportError. The source has joined the
    download by then; the caller lets it leave.
    """
    download = pulling.download
    raw, only = parse_manifest_answer(await session.ask(ManifestRequest(address=download.address)))
    manifest = download.learn(raw)
    download.join(source, pulling.pullers, pulling.me)
    pulling.changed.beat()
    if only and len(manifest.chunks) == 1 and (index := download.ask(source, trio.current_time())) is not None:
        await _take(pulling, source, index, only)
    due: deque[tuple[int, float]] = deque()
    while not download.done:
        while (next_one := download.ask(source, trio.current_time())) is not None:
            await session.request(ChunkRequest(address=download.address, index=next_one))
            due.append((next_one, trio.current_time()))
        if due:
            await _answer(session, source, pulling, due)
        elif source == download.author or download.has_nothing(source):
            return
        else:
            with trio.move_on_at(download.ask_again_at(source, trio.current_time())):
                await pulling.changed.wait()


async def _answer(session: Session, source: PeerId, pulling: BlobFetch, due: deque[tuple[int, float]]) -> None:
    index, asked_at = due.popleft()
    download = pulling.download
    manifest = download.manifest
    assert manifest is not None
    raw = await session.response()
    try:
        chunk = parse_chunk_answer(raw, manifest.chunk_size(index))
    except Refused:
        if source == download.author:
            raise
        now = trio.current_time()
        if now < asked_at + WAITED_S or download.has(index):
            download.refused(source, index, now)
            return
        download.waits(source, index, now)
        await session.request(ChunkRequest(address=download.address, index=index))
        due.append((index, now))
        return
    await _take(pulling, source, index, chunk)


async def _take(pulling: BlobFetch, source: PeerId, index: int, chunk: bytes | memoryview) -> None:
    """Verify and keep a chunk in the hasher: neither may block the event loop."""
    await pulling.hasher.run(len(chunk), partial(pulling.download.keep, index, chunk))
    pulling.download.arrived(source, index, trio.current_time())
    pulling.meter(len(chunk))
    pulling.changed.beat()
