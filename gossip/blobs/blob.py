"""Content-addressed bytes: a payload is sent as chunks of 1 MiB, and its address names every one of them. Only what a
group exchanges (gossip/allreduce) may be in smaller ones.

The manifest is the size and the BLAKE3 digest of each chunk; the address is the BLAKE2b-256 of the manifest. A puller
asks for the manifest, compares it with the address from a signed link, and then verifies each chunk as it comes, of the
whole blob or of a span of it: the first wrong byte is found within one chunk, from any source. `Assembler` keeps only
what has been verified, so memory follows what a peer has really sent, never what it declared.
"""

from collections import OrderedDict
from dataclasses import dataclass
from io import BytesIO
from threading import Lock

from gossip.core.api import BlobFile, BlobSource
from gossip.core.digests import chunk_digest_of, digest_of
from gossip.core.errors import LocalError, Reason, RemoteError
from gossip.core.ids import Digest
from gossip.core.limits import CHUNK_BYTES, MAX_BLOB_BYTES, MAX_CHUNKS, MAX_MANIFEST_BYTES
from gossip.core.wire import MAX_ARRAY, malformed, pack, unpack


@dataclass(frozen=True, kw_only=True)
class BlobManifest:
    """A blob's size in bytes and the digest of each chunk. How large chunks are is not in it: who pulls knows it."""

    size: int
    chunks: tuple[Digest, ...]
    chunk_bytes: int = CHUNK_BYTES

    def encode(self) -> bytes:
        """Return the bytes whose digest is the address."""
        return pack((self.size, self.chunks))

    @property
    def address(self) -> Digest:
        """The blob's address."""
        return digest_of(self.encode())

    def chunk_size(self, index: int) -> int:
        """Return how many bytes chunk `index` has."""
        return min(self.chunk_bytes, self.size - index * self.chunk_bytes)

    @property
    def span(self) -> range:
        """The indices of all chunks."""
        return range(len(self.chunks))


def blob_manifest_of(data: bytes | memoryview | BlobSource, chunk_bytes: int = CHUNK_BYTES) -> BlobManifest:
    """Return the manifest of `data`. It hashes all of it (about 4 GB/s), so call it in a worker thread for a large
    blob."""
    if len(data) > MAX_BLOB_BYTES:
        raise LocalError(f"a blob of {len(data)} bytes is larger than any node takes")
    view = memoryview(data) if isinstance(data, bytes) else data
    starts = range(0, len(data), chunk_bytes)
    chunks = tuple(chunk_digest_of(view[at : at + chunk_bytes]) for at in starts)
    return BlobManifest(size=len(data), chunks=chunks, chunk_bytes=chunk_bytes)


def filed(data: bytes | memoryview | BlobSource, file: BlobFile) -> BlobFile:
    """Write `data` to an empty `file`, and return that. Raises OSError."""
    view = memoryview(data) if isinstance(data, bytes) else data
    for at in range(0, len(data), CHUNK_BYTES):
        file.write_at(at, view[at : min(at + CHUNK_BYTES, len(data))])
    return file


def parse_blob_manifest(raw: bytes, address: Digest, most: int, chunk_bytes: int = CHUNK_BYTES) -> BlobManifest:
    """Parse the manifest that `address` names, of a blob of at most `most` bytes. Raises RemoteError."""
    if len(raw) > MAX_MANIFEST_BYTES:
        raise RemoteError(Reason.OVERSIZE, f"a manifest of {len(raw)} bytes")
    if digest_of(raw) != address:
        raise RemoteError(Reason.DIGEST_MISMATCH, "the manifest is not the one that was announced")
    # No more items than a blob of `most` bytes needs: the decoder allocates as many at each level of nesting.
    needed = -(-min(most, MAX_BLOB_BYTES) // chunk_bytes)
    fields = unpack(raw, MAX_MANIFEST_BYTES, items=max(MAX_ARRAY, needed))
    size, items = fields.integer(), fields.array(MAX_CHUNKS)
    fields.end()
    if size > min(most, MAX_BLOB_BYTES):
        raise RemoteError(Reason.OVERSIZE, f"a blob of {size} bytes where at most {most} are allowed")
    if items.left != -(-size // chunk_bytes):
        raise malformed("a manifest's list does not fit its size")
    return BlobManifest(size=size, chunks=tuple(items.digest() for _ in range(items.left)), chunk_bytes=chunk_bytes)


class Assembler:
    """Assembles a blob, or the chunks of a `span` of it, in whatever order they come.

    The bytes grow in place: joining a list at the end would copy them all at once, and hold them twice. A BytesIO does
    that, and returns its buffer as `bytes` without a copy; a chunk that came early waits separately. With a `file` each
    chunk goes to its place in it at once. Any thread may call the methods.
    """

    def __init__(self, manifest: BlobManifest, span: range | None = None, *, file: BlobFile | None = None) -> None:
        self.manifest = manifest
        self.span = manifest.span if span is None else span
        self._data = BytesIO()
        self._file = file
        self._filed: set[int] = set()
        """Chunks in the file."""
        self._taken = 0
        self._kept = 0
        self._early: dict[int, bytes | memoryview] = {}
        self._lock = Lock()  # held while one chunk is copied (0.1 ms), and never while one is hashed

    @property
    def wanted(self) -> int | None:
        """The first chunk that is not here; None when all are."""
        places = range(self._taken, len(self.span))
        return next((index for index in map(self.span.__getitem__, places) if not self.has(index)), None)

    @property
    def bytes_here(self) -> int:
        """How many bytes are kept."""
        with self._lock:
            there = self._data.tell() + sum(map(self.manifest.chunk_size, self._filed))
            return there + sum(map(len, self._early.values()))

    @property
    def complete(self) -> bool:
        """Whether all chunks are here."""
        return self._kept == len(self.span)

    def has(self, index: int) -> bool:
        """Whether this chunk is here."""
        taken = index - self.span.start < self._taken
        return index in self.span and (taken or index in self._early or index in self._filed)

    def take(self, chunk: bytes | memoryview, index: int | None = None) -> None:
        """Keep chunk `index` (None: the first missing one), unless it is here. Raises RemoteError(DIGEST_MISMATCH), and
        keeps nothing, if these are not its bytes."""
        index = self.wanted if index is None else index
        assert index is not None
        if len(chunk) != self.manifest.chunk_size(index) or chunk_digest_of(chunk) != self.manifest.chunks[index]:
            raise RemoteError(Reason.DIGEST_MISMATCH, f"chunk {index} is not what was announced")
        with self._lock:
            if not self.has(index):
                if self._file is None:
                    self._early[index] = chunk
                else:
                    self._file.write_at((index - self.span.start) * self.manifest.chunk_bytes, memoryview(chunk))
                    self._filed.add(index)
                self._kept += 1
        while self._append_next():
            pass

    def chunk(self, index: int) -> bytes | None:
        """Return a copy of chunk `index`; None when it is not here."""
        with self._lock:
            if not self.has(index):
                return None
            if index in self._early:
                return bytes(self._early[index])
            start = (index - self.span.start) * self.manifest.chunk_bytes
            if self._file is not None:
                return self._file[start : start + self.manifest.chunk_size(index)]
            with self._data.getbuffer() as view:
                return bytes(view[start : start + self.manifest.chunk_size(index)])

    def finish(self) -> bytes | BlobFile:
        """Return all bytes."""
        assert self.complete
        while self._append_next():
            pass
        return self._data.getvalue() if self._file is None else self._file

    def _append_next(self) -> bool:
        with self._lock:
            if self._taken == len(self.span) or (index := self.span[self._taken]) not in self._early:
                return False
            self._data.write(self._early[index])
            self._taken += 1
            del self._early[index]  # last: a reader without the lock always finds it
            return True


def chunk_of(manifest: BlobManifest, data: bytes | BlobFile, index: int) -> bytes | memoryview:
    """Return a chunk of a whole blob, without a copy where it is in memory. Raises RemoteError(PROTOCOL)."""
    if index >= len(manifest.chunks):
        raise RemoteError(Reason.PROTOCOL, "there is no such chunk")
    width = manifest.chunk_bytes
    part = slice(index * width, (index + 1) * width)
    return memoryview(data)[part] if isinstance(data, bytes) else data[part]


@dataclass
class _Held:
    manifest: BlobManifest
    data: bytes | BlobFile
    pins: int


class BlobStore:
    """The blobs that we serve, at most `most` bytes of them: pinned ones stay, of the others the least recently used
    go."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._held: OrderedDict[Digest, _Held] = OrderedDict()
        self.bytes_held = 0

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, address: Digest) -> bool:
        return address in self._held

    def put(self, manifest: BlobManifest, data: bytes | BlobFile) -> Digest:
        """Hold `data`, pinned once more. Raises LocalError when the pinned blobs alone would exceed the bound."""
        address = manifest.address
        held = self._held.get(address)
        if held is None:
            self._make_room(len(data))
            held = self._held[address] = _Held(manifest, data, 0)
            self.bytes_held += len(data)
        held.pins += 1
        return address

    def unpin(self, address: Digest) -> None:
        """Remove one pin; the blob may now be dropped when room is needed."""
        held = self._held.get(address)
        if held is not None:
            held.pins = max(0, held.pins - 1)

    def drop(self, address: Digest) -> None:
        """Remove one pin, and drop the blob if that was the last."""
        self.unpin(address)
        held = self._held.get(address)
        if held is not None and held.pins == 0:
            self._forget(address)

    def manifest(self, address: Digest) -> BlobManifest:
        """Return a blob's manifest. Raises RemoteError(UNAVAILABLE) for a blob that we do not hold."""
        return self._find(address).manifest

    def chunk(self, address: Digest, index: int) -> bytes | memoryview:
        """Return chunk `index`, without a copy where it is in memory. Raises RemoteError(UNAVAILABLE | PROTOCOL)."""
        held = self._find(address)
        return chunk_of(held.manifest, held.data, index)

    def _find(self, address: Digest) -> _Held:
        held = self._held.get(address)
        if held is None:
            raise RemoteError(Reason.UNAVAILABLE, "we do not hold this blob")
        self._held.move_to_end(address)
        return held

    def _make_room(self, size: int) -> None:
        loose = [address for address, held in self._held.items() if held.pins == 0]
        for address in loose:
            if self.bytes_held + size <= self._most:
                return
            self._forget(address)
        if self.bytes_held + size > self._most:
            raise LocalError(f"no room for a blob of {size} bytes: {self.bytes_held} of {self._most} are pinned")

    def _forget(self, address: Digest) -> None:
        self.bytes_held -= self._held.pop(address).manifest.size
