"""What is held of others' payloads: the newest of each, within a bound, and for a while after a cut."""

import random

import pytest
import trio

from gossip.blobs.blob import blob_manifest_of
from gossip.blobs.blob_cache import CUT_DOWNLOADS, HELP_STREAMS, HOLD_S, KEPT_S, BlobCache, PartialBlob, StreamSlots
from gossip.core.errors import Reason, RemoteError
from gossip.core.ids import PeerId
from gossip.core.limits import CHUNK_BYTES

ANN, BOB, CAROL = (PeerId(name) for name in ("ann", "bob", "carol"))


def blob(number: int, size: int = 2 * CHUNK_BYTES + 9) -> bytes:
    return random.Random(number).randbytes(size)


def begun(shelf: BlobCache, peer: PeerId, data: bytes, *, now: float = 0.0, model: bool = False) -> PartialBlob:
    manifest = blob_manifest_of(data)
    kept = shelf.begin(peer, manifest.address, len(data), model=model, now=now)
    kept.download.learn(manifest.encode())
    kept.download.join(peer, (), ANN)
    return kept


def take(kept: PartialBlob, data: bytes, index: int) -> None:
    kept.download.keep(index, data[index * CHUNK_BYTES : (index + 1) * CHUNK_BYTES])
    kept.download.arrived(kept.download.author, index, 0.0)
    kept.changed.beat()


def put(shelf: BlobCache, peer: PeerId, data: bytes) -> None:
    kept = begun(shelf, peer, data)
    for index in blob_manifest_of(data).span:
        take(kept, data, index)
    shelf.finish(peer, kept, kept.download.finish())


async def refused(shelf: BlobCache, data: bytes, index: int) -> Reason:
    with pytest.raises(RemoteError) as caught:
        await shelf.chunk(blob_manifest_of(data).address, index)
    return caught.value.reason


async def test_the_newest_of_each_neighbour_is_served():
    shelf = BlobCache(most=100 * CHUNK_BYTES, count=2)
    for number, peer in enumerate((ANN, ANN, BOB)):
        put(shelf, peer, blob(number))
    assert len(shelf) == 2
    assert await refused(shelf, blob(0), 0) is Reason.UNAVAILABLE
    for number in (1, 2):
        assert shelf.manifest(blob_manifest_of(blob(number)).address) == blob_manifest_of(blob(number))
        assert await shelf.chunk(blob_manifest_of(blob(number)).address, 2) == blob(number)[2 * CHUNK_BYTES :]
    assert await refused(shelf, blob(1), 3) is Reason.PROTOCOL
    put(shelf, CAROL, blob(3))
    assert len(shelf) == 2
    assert await refused(shelf, blob(1), 0) is Reason.UNAVAILABLE, "of the neighbour whose is oldest"


async def test_bytes_are_bounded_and_the_least_used_goes():
    size = 2 * CHUNK_BYTES + 9
    shelf = BlobCache(most=2 * size, count=8)
    put(shelf, ANN, blob(1))
    put(shelf, BOB, blob(2))
    await shelf.chunk(blob_manifest_of(blob(1)).address, 0)
    put(shelf, CAROL, blob(3))
    assert shelf.bytes_held == 2 * size
    assert await refused(shelf, blob(2), 0) is Reason.UNAVAILABLE
    assert await shelf.chunk(blob_manifest_of(blob(1)).address, 0) == blob(1)[:CHUNK_BYTES]


async def test_chunks_on_their_way_are_served_once_they_are_here(autojump_clock):
    shelf, data = BlobCache(most=1 << 30, count=8), blob(1)
    address = blob_manifest_of(data).address
    kept = begun(shelf, BOB, data)
    assert shelf.manifest(address) == blob_manifest_of(data)
    assert await refused(shelf, data, 1) is Reason.UNAVAILABLE
    assert trio.current_time() == 0, "nobody sends it to us: refused at once"
    assert [kept.download.ask(BOB, 0.0) for _ in range(3)] == [0, 1, 2]
    assert await refused(shelf, data, 1) is Reason.UNAVAILABLE
    assert trio.current_time() == HOLD_S
    async with trio.open_nursery() as nursery:

        async def asker() -> None:
            assert await shelf.chunk(address, 1) == data[CHUNK_BYTES : 2 * CHUNK_BYTES]
            assert trio.current_time() == HOLD_S + 1.0

        nursery.start_soon(asker)
        await trio.sleep(1.0)
        take(kept, data, 1)
    assert await refused(shelf, data, 3) is Reason.PROTOCOL


async def test_a_snapshot_is_served_beside_its_authors_newest_payload():
    shelf, data, update = BlobCache(most=1 << 30, count=1), blob(1), blob(2)
    kept = begun(shelf, BOB, data, model=True)
    for index in range(3):
        take(kept, data, index)
    address = blob_manifest_of(data).address
    assert shelf.is_model(address)
    assert await shelf.chunk(address, 2) == data[2 * CHUNK_BYTES :]
    shelf.finish(BOB, kept, kept.download.finish())
    put(shelf, BOB, update)
    assert len(shelf) == 2
    assert await shelf.chunk(address, 2) == data[2 * CHUNK_BYTES :]
    assert shelf.is_model(address)
    assert not shelf.is_model(blob_manifest_of(update).address)


def test_a_cut_download_waits_for_its_neighbour_and_no_longer():
    shelf, data, newer = BlobCache(most=1 << 30, count=8), blob(1), blob(2)
    kept = begun(shelf, BOB, data)
    take(kept, data, 0)
    shelf.make_room(ANN, {BOB}, 10 * KEPT_S)
    shelf.make_room(ANN, (), KEPT_S - 1)
    assert begun(shelf, BOB, data) is kept
    assert kept.download.has(0)
    kept.used_at = 0.0
    shelf.make_room(ANN, (), KEPT_S)
    again = begun(shelf, BOB, data)
    assert again is not kept, "it was let go"
    assert begun(shelf, BOB, newer) is not again, "superseded"
    shelf.forget(BOB)
    assert begun(shelf, BOB, newer).download.bytes_missing == len(newer)


def test_of_peers_that_come_in_turn_few_downloads_are_held_and_that_which_has_most_of_it_stays():
    shelf, degree, honest = BlobCache(most=1 << 30, count=8), 8, blob(1)
    kept = begun(shelf, BOB, honest)
    for index in (0, 1):
        take(kept, honest, index)
    for number in range(40):
        peer, data = PeerId(f"peer {number}"), blob(100 + number)
        shelf.make_room(peer, {peer}, float(number))
        take(begun(shelf, peer, data, now=float(number)), data, 0)
        assert shelf.coming <= degree + CUT_DOWNLOADS
    assert shelf.coming == degree + CUT_DOWNLOADS, "as many as there is room for are kept"
    assert shelf.bytes_coming <= (degree + CUT_DOWNLOADS) * len(honest)
    assert begun(shelf, BOB, honest) is kept, "more of it is here than of theirs"
    assert kept.download.bytes_missing == 9


def test_what_is_under_way_from_neighbours_is_never_let_go():
    shelf, degree = BlobCache(most=1 << 30, count=4), 4
    here = [PeerId(f"neighbour {number}") for number in range(degree)]
    kept = [begun(shelf, peer, blob(number)) for number, peer in enumerate(here)]
    for number in range(10):
        peer, data = PeerId(f"peer {number}"), blob(100 + number)
        shelf.make_room(peer, {*here[1:], peer}, 0.0)
        take(begun(shelf, peer, data), data, 0)
    assert [begun(shelf, peer, blob(number)) is kept[number] for number, peer in enumerate(here)] == [False] + [
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
