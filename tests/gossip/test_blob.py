import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sizes import examples

from gossip.blobs import hashing_task
from gossip.blobs.blob import Assembler, BlobManifest, BlobStore, blob_manifest_of, parse_blob_manifest
from gossip.blobs.hashing_task import Hasher
from gossip.core.digests import digest_of
from gossip.core.errors import LocalError, Reason, RemoteError
from gossip.core.limits import CHUNK_BYTES, MAX_BLOB_BYTES, MAX_MANIFEST_BYTES, MAX_RESPONSE_BYTES
from gossip.core.messages import encode_answer
from gossip.core.wire import pack


def chunks_of(data: bytes) -> list[bytes]:
    return [data[at : at + CHUNK_BYTES] for at in range(0, len(data), CHUNK_BYTES)]


def reason_of(call, *args) -> Reason:
    with pytest.raises(RemoteError) as caught:
        call(*args)
    return caught.value.reason


@pytest.mark.slow
@settings(max_examples=examples(20), deadline=None)
@given(
    st.sampled_from([0, 1, 7, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES + 5]),
    st.binary(max_size=9),
)
def test_a_blob_comes_back_chunk_by_chunk(size, salt):
    data = (salt + b"0123456789abcdef" * (size // 16 + 1))[:size]
    manifest = blob_manifest_of(data)
    assert parse_blob_manifest(manifest.encode(), manifest.address, len(data)) == manifest
    assembler = Assembler(manifest)
    for index, chunk in enumerate(chunks_of(data)):
        assert assembler.wanted == index
        assembler.take(chunk)
    assert assembler.wanted is None
    assert assembler.finish() == data


def test_a_wrong_chunk_is_found_at_once():
    data = bytes(range(256)) * 8192
    assembler = Assembler(blob_manifest_of(data))
    first, second = chunks_of(data)
    for wrong in (first[:-1], first + b"x", b"", bytes(len(first))):
        assert reason_of(assembler.take, wrong) is Reason.DIGEST_MISMATCH
        assert assembler.wanted == 0
    assembler.take(first)
    assert reason_of(assembler.take, second[:-1] + b"?") is Reason.DIGEST_MISMATCH
    assembler.take(second)
    assert assembler.finish() == data


def test_a_span_of_a_blob_is_put_together_from_its_own_chunks():
    data = b"".join(bytes([number]) * CHUNK_BYTES for number in range(4)) + b"the end"
    chunks = chunks_of(data)
    for span in (range(5), range(1, 3), range(4, 5), range(2, 2)):
        assembler = Assembler(blob_manifest_of(data), span)
        for index in span:
            assert assembler.wanted == index
            assert reason_of(assembler.take, chunks[index - 1]) is Reason.DIGEST_MISMATCH
            assembler.take(chunks[index])
        assert assembler.finish() == b"".join(chunks[span.start : span.stop])


def test_the_whole_is_given_away_without_a_copy():
    """Joining 64 MiB would take as much again, and hold the event loop for 0.1 s."""
    data, chunk = bytes(64 * CHUNK_BYTES), bytes(CHUNK_BYTES)
    assembler = Assembler(blob_manifest_of(data))
    tracemalloc.start()
    for _ in assembler.span:
        assembler.take(chunk)
    whole = assembler.finish()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert whole == data
    assert peak < 1.25 * len(data)  # it grows by an eighth at a time


def test_a_manifest_must_be_the_one_announced_and_small_enough():
    manifest = blob_manifest_of(b"words")
    assert reason_of(parse_blob_manifest, manifest.encode(), digest_of(b"other"), 10) is Reason.DIGEST_MISMATCH
    assert reason_of(parse_blob_manifest, manifest.encode(), manifest.address, 4) is Reason.OVERSIZE
    huge = BlobManifest(size=MAX_BLOB_BYTES + 1, chunks=())
    assert reason_of(parse_blob_manifest, huge.encode(), huge.address, 1 << 60) is Reason.OVERSIZE


@pytest.mark.parametrize(("size", "count"), [(1, 0), (0, 1), (CHUNK_BYTES, 2), (CHUNK_BYTES + 1, 1)])
def test_a_manifest_whose_list_does_not_fit_is_malformed(size, count):
    raw = pack((size, [digest_of(b"x")] * count))
    assert reason_of(parse_blob_manifest, raw, digest_of(raw), 1 << 30) is Reason.MALFORMED


def test_a_declared_size_allocates_nothing():
    """An assembler for 16 GiB holds what has come, which is nothing."""
    digests = tuple(digest_of(b"x") for _ in range(MAX_BLOB_BYTES // CHUNK_BYTES))
    manifest = BlobManifest(size=MAX_BLOB_BYTES, chunks=digests)
    raw = manifest.encode()
    assert len(raw) <= MAX_MANIFEST_BYTES
    assembler = Assembler(parse_blob_manifest(raw, digest_of(raw), MAX_BLOB_BYTES))
    assert assembler.wanted == 0
    assert len(encode_answer(raw, bytes(CHUNK_BYTES))) <= MAX_RESPONSE_BYTES


def put(store: BlobStore, data: bytes) -> bytes:
    return store.put(blob_manifest_of(data), data)


def test_the_store_keeps_its_bound_and_what_is_pinned():
    store = BlobStore(10)
    first, second = put(store, b"aaaa"), put(store, b"bbbb")
    with pytest.raises(LocalError):
        put(store, b"cccc")
    store.unpin(first)
    third = put(store, b"cccc")
    assert first not in store
    assert second in store
    assert third in store
    assert store.bytes_held == 8


def test_the_least_recently_used_goes_first():
    store = BlobStore(12)
    names = [put(store, letter * 4) for letter in (b"a", b"b", b"c")]
    for name in names:
        store.unpin(name)
    store.chunk(names[0], 0)
    put(store, b"dddd")
    assert [name in store for name in names] == [True, False, True]


def test_a_blob_that_is_put_twice_is_held_once_and_dropped_twice():
    store = BlobStore(10)
    name = put(store, b"aaaa")
    assert put(store, b"aaaa") == name
    assert store.bytes_held == 4
    store.drop(name)
    assert name in store
    store.drop(name)
    assert name not in store
    assert (len(store), store.bytes_held) == (0, 0)


def test_what_is_not_there_is_said_to_be():
    store = BlobStore(10)
    name = put(store, b"aaaa")
    assert bytes(store.chunk(name, 0)) == b"aaaa"
    assert reason_of(store.chunk, name, 1) is Reason.PROTOCOL
    assert reason_of(store.manifest, digest_of(b"?")) is Reason.UNAVAILABLE


def test_a_manifest_of_empty_promises_takes_no_memory():
    """Lists in lists that each promise 16,384 items: 3 kB took 67 MiB and 90 ms."""
    raw = b"\xdc\x40\x00" * 1000
    tracemalloc.start()
    with pytest.raises(RemoteError):
        parse_blob_manifest(raw, digest_of(raw), most=1000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2 << 20


class Scroll:
    """A file in memory, as the runtime gives them; `most` bytes fit."""

    def __init__(self, most=1 << 40):
        self.data, self.most = bytearray(), most

    def write_at(self, start, data):
        if start + len(data) > self.most:
            raise OSError("full")
        self.data += bytes(max(0, start + len(data) - len(self.data)))
        self.data[start : start + len(data)] = data

    def __len__(self):
        return len(self.data)

    def __getitem__(self, part):
        return bytes(self.data[part])


def test_a_blob_is_put_together_in_a_file():
    data = b"".join(bytes([number]) * CHUNK_BYTES for number in range(4)) + b"the end"
    manifest, file = blob_manifest_of(data), Scroll()
    assembler = Assembler(manifest, file=file)
    for index in (1, 0, 4, 3):
        assembler.take(chunks_of(data)[index], index)
        assert not assembler._early, "none waits in memory for those before it"
    assert assembler.bytes_here == len(data) - CHUNK_BYTES
    assert assembler.wanted == 2
    assert [assembler.chunk(index) for index in (0, 2, 3)] == [chunks_of(data)[0], None, chunks_of(data)[3]]
    assembler.take(chunks_of(data)[2], 2)
    assert assembler.finish() is file
    assert bytes(file.data) == data
    assert blob_manifest_of(file) == manifest
    store = BlobStore(1 << 30)
    address = store.put(manifest, file)
    assert [bytes(store.chunk(address, index)) for index in range(5)] == chunks_of(data)


async def test_large_data_of_ours_go_into_a_file(monkeypatch):
    monkeypatch.setattr(hashing_task, "FILED_FROM", 3 * CHUNK_BYTES)
    small, large = bytes(3 * CHUNK_BYTES - 1), bytes(range(256)) * (13 * CHUNK_BYTES // 1024)
    hasher = Hasher(1 << 40, Scroll)
    assert (await hasher.payload(small)).data is small
    for given_data in (large, memoryview(large)):
        payload = await hasher.payload(given_data)
        assert isinstance(payload.data, Scroll)
        assert bytes(payload.data.data) == large
        assert payload.manifest == blob_manifest_of(large)
    assert (await hasher.payload(payload.data)).data is payload.data, "it lies in a file already"
    view = memoryview(bytearray(small))
    copied = await hasher.payload(view)
    view[0] = 1
    assert copied.data == small, "a view may change afterwards"
    for files in (None, lambda: Scroll(CHUNK_BYTES)):  # no files, and a disk that is full
        assert (await Hasher(1 << 40, files).payload(large)).data == large
