"""What we can serve of others: the newest payload and snapshot of each neighbour, and chunks of those being pulled.

Blobs are named by their content, so any peer that has one can serve it. Memory: finished blobs are one of either kind
for each neighbour, and `most` bytes (network.max_payload_bytes) in all, of which the least recently used are dropped
first. Unfinished downloads are one for each neighbour, as far as they are verified. An interrupted download waits
KEPT_S for its neighbour to come back, as long as there are at most `count` + CUT_DOWNLOADS in all. So peers that come
in turn, and each leave in the middle of a download, hold (degree + CUT_DOWNLOADS) * max_payload_bytes at most, however
many they are.
"""

from collections.abc import Callable, Container
from dataclasses import dataclass, field
from typing import Final

import trio

from gossip.blobs.blob import BlobManifest, BlobStore
from gossip.blobs.download import Download
from gossip.context import Notifier
from gossip.core.api import BlobFile
from gossip.core.errors import Reason, RemoteError
from gossip.core.ids import Digest, PeerId
from gossip.eager_lock import EagerLock

KEPT_S: Final = 60.0
"""Seconds for which a lost neighbour's download is kept: a lost connection is dialled again within a minute."""

CUT_DOWNLOADS: Final = 2
"""Downloads beyond the network's degree. Where our own link breaks, all neighbours are lost and no download begins, so
all of theirs are kept; where a download from every neighbour is under way, those of two lost peers are kept. Chosen."""

HOLD_S: Final = 5.0
"""Seconds that a request waits for a chunk that the author is just sending us: half of the time that a peer waits for
the first byte of an answer (network.request_timeout_s)."""


HELP_STREAMS: Final = 2
"""Streams on which one neighbour helps us at a time, whatever the number of blobs. Together with the stream for its own
payload, a hello and some that are about to end, it stays below limits.MAX_STREAMS_PER_PEER."""


def in_memory(size: int) -> BlobFile | None:
    """Default: no files are made."""
    return None


class StreamSlots:
    """Counts the streams on which each neighbour helps us."""

    def __init__(self) -> None:
        self._until: dict[PeerId, list[float]] = {}

    def taken(self, peer: PeerId, now: float) -> int:
        """Return how many streams are taken, including those that the other end may still hold."""
        left = [until for until in self._until.get(peer, ()) if until > now]
        if left:
            self._until[peer] = left
        else:
            self._until.pop(peer, None)
        return len(left)

    def take(self, peer: PeerId) -> None:
        """Note an opened stream."""
        self._until.setdefault(peer, []).append(float("inf"))

    def free(self, peer: PeerId, now: float, *, orderly: bool) -> None:
        """Note an ended stream. The far end notices a reset only when the chunk that it waits for has come (HOLD_S)."""
        self._until[peer].remove(float("inf"))
        if not orderly:
            self._until[peer].append(now + HOLD_S + 1.0)
        for each in tuple(self._until):  # also those of peers that have left: they would stay for ever
            self.taken(each, now)

    def __len__(self) -> int:
        return len(self._until)


@dataclass(eq=False)
class PartialBlob:
    """A download of a neighbour's payload. `model`: whether it is a snapshot of its whole model, and not an update."""

    download: Download
    changed: Notifier
    model: bool
    used_at: float
    turn: EagerLock = field(default_factory=EagerLock)
    """A neighbour that came back waits here until its former follower has ended."""


class BlobCache:
    """The payloads of neighbours, by address."""

    def __init__(self, *, most: int, count: int, file_for: Callable[[int], BlobFile | None] = in_memory) -> None:
        """`file_for` returns a file for a snapshot of so many bytes; None: it is kept in memory."""
        self._file_for = file_for
        self.places = StreamSlots()
        self._count = count
        self._whole = BlobStore(most)
        self._newest: dict[tuple[PeerId, bool], Digest] = {}
        """Downloads by author, and by whether each is a model."""
        self._coming: dict[PeerId, PartialBlob] = {}

    @property
    def bytes_held(self) -> int:
        """Return the bytes of finished payloads."""
        return self._whole.bytes_held

    @property
    def bytes_coming(self) -> int:
        """Return the verified bytes of unfinished payloads, interrupted ones included."""
        return sum(kept.download.bytes_here for kept in self._coming.values())

    @property
    def coming(self) -> int:
        """Return how many payloads are unfinished, interrupted ones included."""
        return len(self._coming)

    def __len__(self) -> int:
        return len(self._whole)

    def begin(self, peer: PeerId, address: Digest, size: int, *, model: bool, now: float) -> PartialBlob:
        """Return a download of a blob of `peer`; where one of the same blob was interrupted, with what it had."""
        kept = self._coming.get(peer)
        if kept is None or kept.download.address != address or kept.download.size != size:
            file = self._file_for(size) if model else None
            download = Download(address, size, author=peer, began=now, file=file)
            kept = self._coming[peer] = PartialBlob(download, Notifier(), model, now)
        kept.used_at = now
        return kept

    def finish(self, peer: PeerId, kept: PartialBlob, data: bytes | BlobFile) -> None:
        """Serve a whole payload from now on, instead of this peer's newest of its kind."""
        if self._coming.get(peer) is kept:
            del self._coming[peer]
        manifest = kept.download.manifest
        assert manifest is not None
        if kept.download.address not in self._whole:
            self._drop((peer, kept.model))
            of_kind = [name for name in self._newest if name[1] == kept.model]
            for name in of_kind[: max(0, len(of_kind) + 1 - self._count)]:
                self._drop(name)
            self._newest[peer, kept.model] = self._whole.put(manifest, data)
            self._whole.unpin(kept.download.address)
        kept.changed.beat()

    def forget(self, peer: PeerId) -> None:
        """Forget the downloads of this peer."""
        self._coming.pop(peer, None)

    def make_room(self, beginner: PeerId, neighbours: Container[PeerId], now: float) -> None:
        """Drop downloads of peers that did not come back, before `beginner`, a neighbour, begins one. When there are
        too many, also drop one of a peer that may still come back: that with the fewest bytes, since its loss costs
        least."""
        cut = [peer for peer in self._coming if peer not in neighbours and peer != beginner]
        for peer in cut:
            if now >= self._coming[peer].used_at + KEPT_S:
                del self._coming[peer]
        left = [peer for peer in cut if peer in self._coming]
        left.sort(key=lambda peer: self._coming[peer].download.bytes_here)
        more = len(self._coming.keys() | {beginner}) - (self._count + CUT_DOWNLOADS)
        for peer in left[: max(0, more)]:
            del self._coming[peer]

    def manifest(self, address: Digest) -> BlobManifest:
        """Return a blob's manifest. Raises RemoteError(UNAVAILABLE) for a blob that is neither here nor being
        pulled."""
        kept = self._download(address)
        if kept is not None and kept.download.manifest is not None:
            return kept.download.manifest
        return self._whole.manifest(address)

    def is_model(self, address: Digest) -> bool:
        """Return whether this blob is a snapshot."""
        kept = self._download(address)
        return kept.model if kept else any(held == address for (_, model), held in self._newest.items() if model)

    async def chunk(self, address: Digest, index: int) -> bytes | memoryview:
        """Return a chunk that is here, or comes within HOLD_S. Raises RemoteError(UNAVAILABLE | PROTOCOL)."""
        with trio.move_on_after(HOLD_S):
            while (kept := self._download(address)) is not None:
                if index not in self.manifest(address).span:
                    raise RemoteError(Reason.PROTOCOL, "there is no such chunk")
                if (chunk := kept.download.chunk(index)) is not None:
                    return chunk
                if not kept.download.coming(index):
                    raise RemoteError(Reason.UNAVAILABLE, "this chunk is not here")
                await kept.changed.wait()
        if self._download(address) is not None:
            raise RemoteError(Reason.UNAVAILABLE, "this chunk is not here yet")
        return self._whole.chunk(address, index)

    def _download(self, address: Digest) -> PartialBlob | None:
        """Return an unfinished download as others may see it; None once the whole blob is here."""
        if address in self._whole:
            return None
        begun = (kept for kept in self._coming.values() if kept.download.manifest is not None)
        return next((kept for kept in begun if kept.download.address == address), None)

    def _drop(self, name: tuple[PeerId, bool]) -> None:
        address = self._newest.pop(name, None)
        if address is not None:
            self._whole.drop(address)
