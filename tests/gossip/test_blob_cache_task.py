"""What is held of others' payloads: the newest of each, within a bound, and for a while after a cut."""

import random

import pytest
import trio

from gossip.blobs.blob import blob_manifest_of
from gossip.blobs.blob_cache_task import (
    CUT_DOWNLOADS,
    HELP_STREAMS,
    HOLD_S,
    KEPT_S,
    BlobCache,
    PartialBlob,
    StreamSlots,
)
from gossip.core.errors import Reason, RemoteError
from gossip.core.ids import PeerId
from gossip.core.limits import CHUNK_BYTES

ANN, BOB, CAROL = (PeerId(name) for name in ("ann", "bob", "carol"))


def blob(number: int, size: int = 2 * CHUNK_BYTES + 9) -> bytes:
    return random.Random(number).randbytes(size)


def begun(blob_cache: BlobCache, peer: PeerId, data: bytes, *, now: float = 0.0, model: bool = False) -> PartialBlob:
    manifest = blob_manifest_of(data)
    kept = blob_cache.begin(peer, manifest.address, len(data), model=model, now=now)
    kept.download.learn(manifest.encode())
    kept.download.join(peer, (), ANN)
    return kept


def take(kept: PartialBlob, data: bytes, index: int) -> None:
    kept.download.keep(index, data[index * CHUNK_BYTES : (index + 1) * CHUNK_BYTES])
    kept.download.arrived(kept.download.author, index, 0.0)
    kept.changed.beat()


def put(blob_cache: BlobCache, peer: PeerId, data: bytes) -> None:
    kept = begun(blob_cache, peer, data)
    for index in blob_manifest_of(data).span:
        take(kept, data, index)
    blob_cache.finish(peer, kept, kept.download.finish())


async def refused(blob_cache: BlobCache, data: bytes, index: int) -> Reason:
    with pytest.raises(RemoteError) as caught:
        await blob_cache.chunk(blob_manifest_of(data).address, index)
    return caught.value.reason


async def test_the_newest_of_each_neighbour_is_served():
    blob_cache = BlobCache(most=100 * CHUNK_BYTES, count=2)
    for number, peer in enumerate((ANN, ANN, BOB)):
        put(blob_cache, peer, blob(number))
    assert len(blob_cache) == 2
    assert await refused(blob_cache, blob(0), 0) is Reason.UNAVAILABLE
    for number in (1, 2):
        assert blob_cache.manifest(blob_manifest_of(blob(number)).address) == blob_manifest_of(blob(number))
        assert await blob_cache.chunk(blob_manifest_of(blob(number)).address, 2) == blob(number)[2 * CHUNK_BYTES :]
    assert await refused(blob_cache, blob(1), 3) is Reason.PROTOCOL
    put(blob_cache, CAROL, blob(3))
    assert len(blob_cache) == 2
    assert await refused(blob_cache, blob(1), 0) is Reason.UNAVAILABLE, "of the neighbour whose is oldest"


async def test_bytes_are_bounded_and_the_least_used_goes():
    size = 2 * CHUNK_BYTES + 9
    blob_cache = BlobCache(most=2 * size, count=8)
    put(blob_cache, ANN, blob(1))
    put(blob_cache, BOB, blob(2))
    await blob_cache.chunk(blob_manifest_of(blob(1)).address, 0)
    put(blob_cache, CAROL, blob(3))
    assert blob_cache.bytes_held == 2 * size
    assert await refused(blob_cache, blob(2), 0) is Reason.UNAVAILABLE
    assert await blob_cache.chunk(blob_manifest_of(blob(1)).address, 0) == blob(1)[:CHUNK_BYTES]


async def test_chunks_on_their_way_are_served_once_they_are_here(autojump_clock):
    blob_cache, data = BlobCache(most=1 << 30, count=8), blob(1)
    address = blob_manifest_of(data).address
    kept = begun(blob_cache, BOB, data)
    assert blob_cache.manifest(address) == blob_manifest_of(data)
    assert await refused(blob_cache, data, 1) is Reason.UNAVAILABLE
    assert trio.current_time() == 0, "nobody sends it to us: refused at once"
    assert [kept.download.ask(BOB, 0.0) for _ in range(3)] == [0, 1, 2]
    assert await refused(blob_cache, data, 1) is Reason.UNAVAILABLE
    assert trio.current_time() == HOLD_S
    async with trio.open_nursery() as nursery:

        async def asker() -> None:
            assert await blob_cache.chunk(address, 1) == data[CHUNK_BYTES : 2 * CHUNK_BYTES]
            assert trio.current_time() == HOLD_S + 1.0

        nursery.start_soon(asker)
        await trio.sleep(1.0)
        take(kept, data, 1)
    assert await refused(blob_cache, data, 3) is Reason.PROTOCOL


async def test_a_snapshot_is_served_beside_its_authors_newest_payload():
    blob_cache, data, update = BlobCache(most=1 << 30, count=1), blob(1), blob(2)
    kept = begun(blob_cache, BOB, data, model=True)
    for index in range(3):
        take(kept, data, index)
    address = blob_manifest_of(data).address
    assert blob_cache.is_model(address)
    assert await blob_cache.chunk(address, 2) == data[2 * CHUNK_BYTES :]
    blob_cache.finish(BOB, kept, kept.download.finish())
    put(blob_cache, BOB, update)
    assert len(blob_cache) == 2
    assert await blob_cache.chunk(address, 2) == data[2 * CHUNK_BYTES :]
    assert blob_cache.is_model(address)
    assert not blob_cache.is_model(blob_manifest_of(update).address)


def test_a_cut_download_waits_for_its_neighbour_and_no_longer():
    blob_cache, data, newer = BlobCache(most=1 << 30, count=8), blob(1), blob(2)
    kept = begun(blob_cache, BOB, data)
    take(kept, data, 0)
    blob_cache.make_room(ANN, {BOB}, 10 * KEPT_S)
    blob_cache.make_room(ANN, (), KEPT_S - 1)
    assert begun(blob_cache, BOB, data) is kept
    assert kept.download.has(0)
    kept.used_at = 0.0
    blob_cache.make_room(ANN, (), KEPT_S)
    again = begun(blob_cache, BOB, data)
    assert again is not kept, "it was let go"
    assert begun(blob_cache, BOB, newer) is not again, "superseded"
    blob_cache.forget(BOB)
    assert begun(blob_cache, BOB, newer).download.bytes_missing == len(newer)


@pytest.mark.slow
def test_of_peers_that_come_in_turn_few_downloads_are_held_and_that_which_has_most_of_it_stays():
    blob_cache, degree, honest = BlobCache(most=1 << 30, count=8), 8, blob(1)
    kept = begun(blob_cache, BOB, honest)
    for index in (0, 1):
        take(kept, honest, index)
    for number in range(40):
        peer, data = PeerId(f"peer {number}"), blob(100 + number)
        blob_cache.make_room(peer, {peer}, float(number))
        take(begun(blob_cache, peer, data, now=float(number)), data, 0)
        assert blob_cache.coming <= degree + CUT_DOWNLOADS
    assert blob_cache.coming == degree + CUT_DOWNLOADS, "as many as there is room for are kept"
    assert blob_cache.bytes_coming <= (degree + CUT_DOWNLOADS) * len(honest)
    assert begun(blob_cache, BOB, honest) is kept, "more of it is here than of theirs"
    assert kept.download.bytes_missing == 9


def test_what_is_under_way_from_neighbours_is_never_let_go():
    blob_cache, degree = BlobCache(most=1 << 30, count=4), 4
    here = [PeerId(f"neighbour {number}") for number in range(degree)]
    kept = [begun(blob_cache, peer, blob(number)) for number, peer in enumerate(here)]
    for number in range(10):
        peer, data = PeerId(f"peer {number}"), blob(100 + number)
        blob_cache.make_room(peer, {*here[1:], peer}, 0.0)
        take(begun(blob_cache, peer, data), data, 0)
    assert [begun(blob_cache, peer, blob(number)) is kept[number] for number, peer in enumerate(here)] == [False] + [
        True
    ] * 3


def test_of_helpers_that_come_in_turn_nothing_is_kept():
    places = StreamSlots()
    for number in range(40):
        peer, now = PeerId(f"peer {number}"), 10.0 * number
        places.take(peer)
        places.free(peer, now, orderly=number % 2 == 0)
    assert len(places) <= 1


def test_a_place_is_free_again_when_the_other_end_must_know():
    places = StreamSlots()
    for _ in range(HELP_STREAMS):
        places.take(ANN)
    assert places.taken(ANN, 0.0) == HELP_STREAMS
    assert places.taken(BOB, 0.0) == 0
    places.free(ANN, 1.0, orderly=True)
    assert places.taken(ANN, 1.0) == HELP_STREAMS - 1
    places.free(ANN, 1.0, orderly=False)
    assert places.taken(ANN, 1.0 + HOLD_S) == 1
    assert places.taken(ANN, 2.1 + HOLD_S) == 0
