"""Pulling a blob: a few chunks ahead and never more, in order, each one verified, nothing heavy on the loop."""

import random
import threading
from collections import deque
from typing import Any

import pytest
import trio

from gossip.blobs.blob import Assembler, BlobManifest, blob_manifest_of
from gossip.blobs.blob_fetch_task import fetch_blob
from gossip.blobs.download import AHEAD
from gossip.blobs.hashing_task import Hasher
from gossip.core.errors import Reason, RemoteError
from gossip.core.limits import CHUNK_BYTES
from gossip.core.messages import ChunkRequest, ManifestRequest, Request, encode_answer, encode_refusal

INLINE = Hasher(1 << 62)


class Holder:
    """A session with somebody who holds a blob, and what it was asked for."""

    def __init__(self, data: bytes, *, spoiled: int | None = None, refused: int | None = None) -> None:
        self.data = data
        self.manifest: BlobManifest = blob_manifest_of(data)
        self.asked: list[int] = []
        self.most_ahead = 0
        self._spoiled, self._refused = spoiled, refused
        self._due: deque[int] = deque()

    async def ask(self, request: Request) -> bytes:
        assert isinstance(request, ManifestRequest)
        return encode_answer(self.manifest.encode(), self.data if len(self.manifest.chunks) == 1 else b"")

    async def request(self, request: Request) -> None:
        assert isinstance(request, ChunkRequest)
        await trio.lowlevel.checkpoint()
        self.asked.append(request.index)
        self._due.append(request.index)
        self.most_ahead = max(self.most_ahead, len(self._due))

    async def response(self) -> bytes:
        await trio.lowlevel.checkpoint()
        index = self._due.popleft()
        if index == self._refused:
            return encode_refusal(Reason.UNAVAILABLE, "gone")
        chunk = bytearray(self.data[index * CHUNK_BYTES : (index + 1) * CHUNK_BYTES])
        if index == self._spoiled:
            chunk[-1] ^= 1
        return encode_answer(bytes(chunk))


def blob(size: int) -> bytes:
    return random.Random(size).randbytes(size)


async def pulled(holder: Any, hasher: Hasher = INLINE) -> tuple[bytes, int]:
    metered: list[int] = []
    data = await fetch_blob(holder, holder.manifest.address, len(holder.data), hasher, metered.append)
    return data, sum(metered)


@pytest.mark.parametrize("size", [1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES, 9 * CHUNK_BYTES + 5])
async def test_a_blob_comes_whole_and_each_chunk_once(size: int) -> None:
    holder = Holder(blob(size))
    assert await pulled(holder) == (holder.data, size)
    chunks = len(holder.manifest.chunks)
    assert holder.asked == (list(range(chunks)) if chunks > 1 else [])  # a single one came with the manifest
    assert holder.most_ahead == min(AHEAD, len(holder.asked))


async def test_the_first_wrong_byte_ends_it() -> None:
    holder = Holder(blob(9 * CHUNK_BYTES), spoiled=2)
    with pytest.raises(RemoteError) as caught:
        await pulled(holder)
    assert caught.value.reason is Reason.DIGEST_MISMATCH
    assert max(holder.asked) < 2 + AHEAD


async def test_a_refusal_ends_it_too() -> None:
    with pytest.raises(RemoteError) as caught:
        await pulled(Holder(blob(3 * CHUNK_BYTES), refused=1))
    assert caught.value.reason is Reason.UNAVAILABLE


async def test_neither_hashing_nor_keeping_holds_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    where: list[int] = []
    take = Assembler.take

    def noted(self: Assembler, chunk: bytes, index: int) -> None:
        where.append(threading.get_ident())
        take(self, chunk, index)

    monkeypatch.setattr(Assembler, "take", noted)
    holder = Holder(blob(3 * CHUNK_BYTES))
    assert await pulled(holder, Hasher(CHUNK_BYTES // 2)) == (holder.data, len(holder.data))
    assert len(where) == 3
    assert threading.get_ident() not in where


@pytest.mark.parametrize(("first", "stop"), [(0, 9), (0, 2), (3, 7), (8, 9), (4, 4)])
async def test_a_span_is_pulled_and_nothing_else(first: int, stop: int) -> None:
    holder = Holder(blob(8 * CHUNK_BYTES + 5))
    metered: list[int] = []
    size, span = len(holder.data), range(first, stop)
    data = await fetch_blob(holder, holder.manifest.address, size, INLINE, metered.append, span)  # type: ignore[arg-type]
    assert data == holder.data[first * CHUNK_BYTES : stop * CHUNK_BYTES]
    assert holder.asked == list(span)
    assert sum(metered) == len(data)


async def test_what_came_with_the_manifest_is_not_taken_for_another_span() -> None:
    holder = Holder(b"one chunk")
    data = await fetch_blob(holder, holder.manifest.address, 9, INLINE, lambda size: None, range(0))  # type: ignore[arg-type]
    assert data == b""
