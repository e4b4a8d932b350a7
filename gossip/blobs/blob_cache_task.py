"""What we can serve of others: the newest payload and snapshot of each neighbour, and chunks of those on their way.

Blobs are named by their content, so whoever has one can serve it. Memory: of finished ones one of either kind a
neighbour, and `most` bytes (network.max_payload_bytes) in all, of which the least recently used go first; of those on
their way one a neighbour, what is verified of it. A download that was cut waits KEPT_S for its neighbour to come back,
as long as there are at most `count` + CUT_DOWNLOADS in all: peers that come in turn, each to leave in the middle of
one, hold (degree + CUT_DOWNLOADS) * max_payload_bytes at the most, however many they are.
"""

from collections.abc import Container
from dataclasses import dataclass, field
from typing import Final

import trio

from gossip.blobs.blob import BlobManifest, BlobStore
from gossip.blobs.download import Download
from gossip.context import Notifier
from gossip.core.errors import Reason, RemoteError
from gossip.core.ids import Digest, PeerId

KEPT_S: Final = 60.0
"""What was pulled of a neighbour that is gone is kept so long: a lost connection is dialled again within a minute."""

CUT_DOWNLOADS: Final = 2
"""Downloads beyond the network's degree. Where our own link breaks, all neighbours are gone and nothing is begun, so
that those of all of them are kept; where every neighbour's is under way, those of two that were lost. Chosen."""

HOLD_S: Final = 5.0
"""Whoever asks for a chunk that the author is just sending us waits so long for it: half of anybody's patience for the
first byte of an answer (network.request_timeout_s)."""


HELP_STREAMS: Final = 2
"""Streams on which one neighbour helps us at a time, whatever the number of blobs: with that for its own payload, a
hello and some that are about to end, it stays below limits.MAX_STREAMS_PER_PEER."""


class StreamSlots:
    """The streams on which each neighbour helps us."""

    def __init__(self) -> None:
        self._until: dict[PeerId, list[float]] = {}

    def taken(self, peer: PeerId, now: float) -> int:
        """How many, with those that the other end may still hold."""
        left = [until for until in self._until.get(peer, ()) if until > now]
        if left:
            self._until[peer] = left
        else:
            self._until.pop(peer, None)
        return len(left)

    def take(self, peer: PeerId) -> None:
        """One more is opened."""
        self._until.setdefault(peer, []).append(float("inf"))

    def free(self, peer: PeerId, now: float, *, orderly: bool) -> None:
        """One has ended. The other end learns of a reset only when what it waits for has come (shelf.HOLD_S)."""
        self._until[peer].remove(float("inf"))
        if not orderly:
            self._until[peer].append(now + HOLD_S + 1.0)
        for each in tuple(self._until):  # also those that have left: they would stay for ever
            self.taken(each, now)

    def __len__(self) -> int:
        return len(self._until)


@dataclass(eq=False)
class PartialBlob:
    """A download of a neighbour's. `model`: whether it is all of its model, a snapshot, and not an update."""

    download: Download
    changed: Notifier
    model: bool
    used_at: float
    turn: trio.Lock = field(default_factory=trio.Lock)
    """A neighbour that came back waits until what followed it before has ended."""


class BlobCache:
    """The payloads of neighbours, by address."""

    def __init__(self, *, most: int, count: int) -> None:
        self.places = StreamSlots()
        self._count = count
        self._whole = BlobStore(most)
        self._newest: dict[tuple[PeerId, bool], Digest] = {}
        """By author, and by whether it is a model."""
        self._coming: dict[PeerId, PartialBlob] = {}

    @property
    def bytes_held(self) -> int:
        """Of finished payloads."""
        return self._whole.bytes_held

    @property
    def bytes_coming(self) -> int:
        """Of payloads on their way, and of those that were cut: what is verified of them."""
        return sum(kept.download.bytes_here for kept in self._coming.values())

    @property
    def coming(self) -> int:
        """How many are on their way, or were cut."""
        return len(self._coming)

    def __len__(self) -> int:
        return len(self._whole)

    def begin(self, peer: PeerId, address: Digest, size: int, *, model: bool, now: float) -> PartialBlob:
        """The download of a blob of `peer`, where an earlier one of the same blob was cut: with what it had."""
        kept = self._coming.get(peer)
        if kept is None or kept.download.address != address or kept.download.size != size:
            download = Download(address, size, author=peer, began=now)
            kept = self._coming[peer] = PartialBlob(download, Notifier(), model, now)
        kept.used_at = now
        return kept

    def finish(self, peer: PeerId, kept: PartialBlob, data: bytes) -> None:
        """It is whole: served from now on, in place of what was newest of its kind of this peer."""
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
        """Nothing of this peer is on its way any more."""
        self._coming.pop(peer, None)

    def make_room(self, beginner: PeerId, neighbours: Container[PeerId], now: float) -> None:
        """Before `beginner`, a neighbour, begins: let go of downloads of peers that did not come back; when there are
        too many, also of those that may yet, the one of which least is here first, since its loss costs least."""
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
        """Raises RemoteError(UNAVAILABLE) for a blob that is neither here nor on its way."""
        kept = self._download(address)
        if kept is not None and kept.download.manifest is not None:
            return kept.download.manifest
        return self._whole.manifest(address)

    def is_model(self, address: Digest) -> bool:
        """Whether this blob is a snapshot."""
        kept = self._download(address)
        return kept.model if kept else any(held == address for (_, model), held in self._newest.items() if model)

    async def chunk(self, address: Digest, index: int) -> bytes | memoryview:
        """A chunk that is here, or that the author sends within HOLD_S. Raises RemoteError(UNAVAILABLE | PROTOCOL)."""
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
        """The one on its way, as far as others may know; never while the whole is here."""
        if address in self._whole:
            return None
        begun = (kept for kept in self._coming.values() if kept.download.manifest is not None)
        return next((kept for kept in begun if kept.download.address == address), None)

    def _drop(self, name: tuple[PeerId, bool]) -> None:
        address = self._newest.pop(name, None)
        if address is not None:
            self._whole.drop(address)
