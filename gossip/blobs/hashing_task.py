"""Where hashing runs: small data in place, large data in a worker thread, so that the event loop stays responsive.
Functions that wait for the disk run there too."""

from collections.abc import Callable
from contextlib import suppress
from typing import Final, TypeVar

import trio

from gossip.blobs.blob import BlobManifest, blob_manifest_of, filed
from gossip.core.api import BlobFile, BlobSource, NewFile
from gossip.core.limits import CHUNK_BYTES, MAX_BLOB_BYTES
from gossip.updates.publisher import Payload

T = TypeVar("T")

FILED_FROM: Final = 16 << 20
"""Bytes from which a blob of ours, or another's snapshot, is kept in a file and not in memory: of a model with 4M
parameters, whose snapshot is as large, a node holds some 200 MB all told. Chosen."""


class Hasher:
    """Runs a pure function over `size` bytes, in a thread when they are more than `in_thread_above`."""

    def __init__(self, in_thread_above: int, new_file: NewFile | None = None) -> None:
        self._in_thread_above = in_thread_above
        self._new_file = new_file

    async def run(self, size: int, function: Callable[[], T]) -> T:
        """Return the function's result; its exceptions pass through."""
        if size <= self._in_thread_above:
            return function()
        return await trio.to_thread.run_sync(function)

    async def wait_for_disk(self, function: Callable[[], T]) -> T:
        """Return the result of a function that syncs a file. It counts as the largest blob, since a disk that is busy
        with a checkpoint may delay a sync of a few bytes for seconds."""
        return await self.run(MAX_BLOB_BYTES, function)

    async def payload(self, data: bytes | memoryview | BlobFile, chunk_bytes: int = CHUNK_BYTES) -> Payload:
        """Return `data` with its manifest. It is put into a file where it is large, and is a copy of a view."""
        return await self.run(
            len(data), lambda: Payload(manifest=blob_manifest_of(data, chunk_bytes), data=self._kept(data))
        )

    async def manifest(self, data: bytes | memoryview | BlobSource) -> BlobManifest:
        """Return the manifest of `data`, which does not change meanwhile."""
        return await self.run(len(data), lambda: blob_manifest_of(data))

    def new_file(self, size: int) -> BlobFile | None:
        """Return a file for so many bytes; None where they are few, there are no files, or the disk gives none."""
        if self._new_file is None or size < FILED_FROM:
            return None
        with suppress(OSError):
            return self._new_file()
        return None

    def _kept(self, data: bytes | memoryview | BlobFile) -> bytes | BlobFile:
        if not isinstance(data, bytes | memoryview):
            return data
        file = self.new_file(len(data))
        with suppress(OSError):
            if file is not None:
                return filed(data, file)
        return bytes(data)
