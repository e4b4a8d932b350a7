"""Where hashing runs: small data in place, large data in a worker thread, so that the event loop stays responsive.
Functions that wait for the disk run there too."""

from collections.abc import Callable
from typing import TypeVar

import trio

from gossip.blobs.blob import blob_manifest_of
from gossip.core.limits import MAX_BLOB_BYTES
from gossip.updates.publisher import Payload

T = TypeVar("T")


class Hasher:
    """Runs a pure function over `size` bytes, in a thread when they are more than `in_thread_above`."""

    def __init__(self, in_thread_above: int) -> None:
        self._in_thread_above = in_thread_above

    async def run(self, size: int, function: Callable[[], T]) -> T:
        """Return the function's result; its exceptions pass through."""
        if size <= self._in_thread_above:
            return function()
        return await trio.to_thread.run_sync(function)

    async def wait_for_disk(self, function: Callable[[], T]) -> T:
        """Return the result of a function that syncs a file. It counts as the largest blob, since a disk that is busy
        with a checkpoint may delay a sync of a few bytes for seconds."""
        return await self.run(MAX_BLOB_BYTES, function)

    async def payload(self, data: bytes) -> Payload:
        """Return `data` with its manifest."""
        manifest = await self.run(len(data), lambda: blob_manifest_of(data))
        return Payload(manifest=manifest, data=data)
