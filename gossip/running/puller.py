"""Pulls one blob over one stream: the manifest, then its chunks, each verified as it comes.

The pull is the credit. A few chunks are asked for ahead, so that neither end waits for the other's turn, and no more
than those are ever under way; while one is being verified, the next comes in.
"""

from collections.abc import Callable
from functools import partial
from typing import Final

from gossip.errors import Reason, RemoteError
from gossip.ids import Digest
from gossip.protocol.blobs import Assembler, parse_manifest
from gossip.protocol.messages import ChunkRequest, ManifestRequest, parse_bytes_answer, parse_manifest_answer
from gossip.running.hashing import Hasher
from gossip.running.session import Session

AHEAD: Final = 4
"""Chunks asked for and not yet verified: 4 MiB, one stream's largest window (335 Mbit/s at a round trip of 100 ms)."""

Meter = Callable[[int], None]
"""Told of verified bytes as they come in."""


async def pull(session: Session, address: Digest, size: int, hasher: Hasher, meter: Meter) -> bytes:
    """The blob `address`, of exactly `size` bytes. Raises RemoteError (also Refused) or TransportError."""
    raw, first = parse_manifest_answer(await session.ask(ManifestRequest(address=address)))
    manifest = parse_manifest(raw, address, size)
    if manifest.size != size:
        raise RemoteError(Reason.PROTOCOL, f"a blob of {manifest.size} bytes where {size} were announced")
    assembler = Assembler(manifest)
    asked = 1 if first else 0
    while (index := assembler.wanted) is not None:
        while asked < min(len(manifest.chunks), index + AHEAD):
            await session.request(ChunkRequest(address=address, index=asked))
            asked += 1
        if index or not first:
            chunk = parse_bytes_answer(await session.response(), manifest.chunk_size(index))
        else:
            chunk = first
        await hasher.run(len(chunk), partial(assembler.check, index, chunk))
        assembler.add(chunk)
        meter(len(chunk))
    return await hasher.run(size, assembler.finish)
