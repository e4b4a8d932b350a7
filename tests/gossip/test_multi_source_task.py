"""What to ask of whom: shares, windows, what comes back from a source that fails, and that it always ends."""

import random
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sizes import examples

from gossip.blobs.blob import BlobManifest, blob_manifest_of
from gossip.blobs.download import AHEAD, GIVE_UP, LACKS_S, LATE_S, PLAN_S, TWICE, AuthorLiedError, Download
from gossip.core.digests import chunk_digest_of
from gossip.core.errors import Reason, RemoteError
from gossip.core.ids import PeerId
from gossip.core.limits import CHUNK_BYTES

AUTHOR, ME, ANN, BOB = (PeerId(name) for name in ("author", "me", "ann", "bob"))
PULLERS = sorted([ME, ANN, BOB])
LAST = b"end"


def chunk_of(index: int, chunks: int) -> bytes:
    return LAST if index == chunks - 1 else bytes([index]) * CHUNK_BYTES


def manifest(chunks: int) -> BlobManifest:
    digests = tuple(chunk_digest_of(chunk_of(index, chunks)) for index in range(chunks))
    return BlobManifest(size=(chunks - 1) * CHUNK_BYTES + len(LAST), chunks=digests)


def begun(chunks: int) -> Download:
    named = manifest(chunks)
    download = Download(named.address, named.size, author=AUTHOR, began=0.0)
    download.learn(named.encode())
    return download


def all_asked(download: Download, peer: PeerId, now: float) -> list[int]:
    found = []
    while (index := download.ask(peer, now)) is not None:
        found.append(index)
    return found


def give(download: Download, peer: PeerId, index: int, now: float) -> None:
    assert download.manifest is not None
    download.keep(index, chunk_of(index, len(download.manifest.chunks)))
    download.arrived(peer, index, now)


def test_alone_everything_is_asked_in_order_and_a_few_ahead():
    download = begun(9)
    download.join(AUTHOR, [ME], ME)
    assert all_asked(download, AUTHOR, 0.0) == list(range(AHEAD))
    for index in range(9):
        give(download, AUTHOR, index, 0.1 * index)
        all_asked(download, AUTHOR, 0.1 * index)
    assert download.done
    assert download.finish() == b"".join(chunk_of(index, 9) for index in range(9))
    assert download.bytes_missing == 0


def test_everybody_begins_with_a_share_of_its_own_and_asks_others_for_theirs():
    asked = {}
    for me in PULLERS:
        download = begun(12)
        download.join(AUTHOR, PULLERS, me)
        asked[me] = all_asked(download, AUTHOR, 0.0)
    assert sorted(index for share in asked.values() for index in share) == list(range(12)), "none twice, none left out"
    download = begun(12)
    for peer in (AUTHOR, ANN, BOB):
        download.join(peer, PULLERS, ME)
    all_asked(download, AUTHOR, 0.0)
    assert download.ask(ANN, 0.0) == asked[ANN][0]
    assert download.ask(BOB, 0.0) == asked[BOB][0]
    assert download.ask(ANN, 0.0) is None, "one that has given nothing yet is asked for one"


def test_a_slow_source_is_asked_for_little_ahead():
    download = begun(40)
    download.join(AUTHOR, [ME], ME)
    assert len(all_asked(download, AUTHOR, 0.0)) == AHEAD
    for index in range(AHEAD):
        give(download, AUTHOR, index, 30.0 * (index + 1))
    assert len(all_asked(download, AUTHOR, 200.0)) == 1
    download.leave(AUTHOR)
    download.join(AUTHOR, [ME], ME)
    assert len(all_asked(download, AUTHOR, 200.0)) == 1, "that is remembered"
    assert download.slow(AUTHOR)
    quick = begun(40)
    quick.join(AUTHOR, [ME], ME)
    assert quick.slow(AUTHOR), "it has not shown anything yet"
    give(quick, AUTHOR, all_asked(quick, AUTHOR, 0.0)[0], PLAN_S / AHEAD / 10)
    assert not quick.slow(AUTHOR)
    assert len(all_asked(quick, AUTHOR, 1.0)) == 1, "one came, one more is asked for"


def test_a_source_that_fails_gives_back_what_it_was_asked_for():
    download = begun(3)
    download.join(AUTHOR, [ME], ME)
    assert all_asked(download, AUTHOR, 0.0) == [0, 1, 2]
    assert not download.idle(AUTHOR)
    assert not download.idle_chunks
    download.join(ANN, [ME], ME)
    assert download.ask(ANN, 0.0) is None
    assert download.idle(ANN)
    give(download, AUTHOR, 1, 0.1)
    assert download.coming(0)
    download.leave(AUTHOR)
    assert not download.coming(0)
    assert download.idle_chunks
    assert download.ask(ANN, 0.2) == 0
    assert download.chunk(1) == chunk_of(1, 3)
    assert download.chunk(0) is None


def test_a_wrong_chunk_is_not_kept_and_can_be_asked_of_another():
    download = begun(2)
    download.join(ANN, [ME], ME)
    assert download.ask(ANN, 0.0) == 0
    with pytest.raises(RemoteError) as caught:
        download.keep(0, bytes(CHUNK_BYTES - 1) + b"?")
    assert caught.value.reason is Reason.DIGEST_MISMATCH
    download.leave(ANN)
    download.join(BOB, [ME], ME)
    assert download.ask(BOB, 0.0) == 0
    assert not download.has(0)


def test_a_refused_chunk_is_asked_elsewhere_and_again_after_a_while():
    download = begun(2)
    for peer in (ANN, BOB):
        download.join(peer, [ME], ME)
    assert download.ask(ANN, 0.0) == 0
    download.refused(ANN, 0, 0.0)
    assert download.ask(ANN, 0.0) is None, "left alone for a moment"
    assert download.ask(BOB, 0.0) == 0
    download.leave(BOB)
    assert download.ask(ANN, 0.5) == 1
    download.refused(ANN, 1, 0.5)
    assert download.ask(ANN, LACKS_S + 0.1) == 0
    for _ in range(GIVE_UP):
        assert not download.has_nothing(ANN)
        download.refused(ANN, 0, 2.0)
        if download.has_nothing(ANN):
            break
    assert download.has_nothing(ANN)


def test_a_slow_author_is_not_asked_for_what_its_owner_may_be_asking_for():
    download = begun(6)
    for peer in (AUTHOR, ANN):
        download.join(peer, [ANN, ME], ME)
    mine = [download.ask(AUTHOR, 0.0), download.ask(AUTHOR, 0.0), download.ask(AUTHOR, 0.0)]
    assert mine == [1, 3, 5]
    assert download.ask(ANN, 0.0) == 0
    for index in (1, 3, 5):
        give(download, AUTHOR, index, 1.0 * index)
    assert download.ask(AUTHOR, 6.0) is None
    assert not download.author_wanted(6.0)
    download.refused(ANN, 0, 7.0)
    assert download.ask(AUTHOR, 7.0) is None
    assert download.ask(AUTHOR, 7.0 + 2 * LACKS_S) == 0, "the owner had its time"
    download.leave(ANN)
    assert download.author_wanted(9.0), "there is nobody else to ask"


def test_what_a_slow_source_is_at_for_too_long_is_asked_twice_but_not_more():
    download = begun(9)
    download.join(ANN, [ME], ME)
    give(download, ANN, download.ask(ANN, 0.0), 0.1)  # type: ignore[arg-type]
    held = all_asked(download, ANN, 0.1)
    download.join(BOB, [ME], ME)
    while (index := download.ask(BOB, 0.2)) is not None:
        give(download, BOB, index, 0.2)
    assert download.ask(BOB, LATE_S) is None
    late = all_asked(download, BOB, 0.2 + LATE_S)
    assert late == held[:TWICE]
    for index in late:
        give(download, BOB, index, 11.0)
    give(download, ANN, late[0], 12.0)
    assert all_asked(download, BOB, 40.0) == held[TWICE:]
    for index in held[TWICE:]:
        give(download, BOB, index, 40.0)
    assert download.done


def slow_and_slower(chunks: int, helpers_s: float) -> Download:
    """The author, which has taken two seconds for each of four chunks, and Ann, who has taken so long for one."""
    download = begun(chunks)
    download.join(AUTHOR, [ANN, ME], ME)
    download.join(ANN, [ANN, ME], ME)
    held = all_asked(download, AUTHOR, 0.0)
    anns = download.ask(ANN, 0.0)
    assert anns is not None
    for number, index in enumerate(held):
        give(download, AUTHOR, index, 2.0 * (number + 1))
    give(download, ANN, anns, helpers_s)
    return download


@pytest.mark.parametrize(("helpers_s", "left_to_it"), [(4.0, True), (4.5, False)])
def test_the_share_of_a_helper_that_trails_the_author_is_asked_of_the_author_too(helpers_s, left_to_it):
    download = slow_and_slower(20, helpers_s)
    own = set(download._sources[AUTHOR].own)
    asked = []
    now = 8.0
    while (index := download.ask(AUTHOR, now)) is not None:
        asked.append(index)
        now += 2.0
        give(download, AUTHOR, index, now)
    assert own.issuperset(asked) is left_to_it


def test_the_share_of_a_helper_that_sends_nothing_is_asked_of_the_author_after_a_while():
    download = begun(20)
    download.join(AUTHOR, [ANN, ME], ME)
    download.join(ANN, [ANN, ME], ME)
    held, now = download.ask(ANN, 0.0), 0.0
    while now < LATE_S and (index := download.ask(AUTHOR, now)) is not None:
        now += 0.9
        give(download, AUTHOR, index, now)
    assert download.ask(AUTHOR, LATE_S) is None
    later = download.ask(AUTHOR, LATE_S + 0.1)
    assert later in download._sources[ANN].own
    assert later != held, "not only what it is at for too long"


@pytest.mark.parametrize(("chunks", "asked"), [(20, True), (7, False)])
def test_a_helper_is_asked_for_nothing_more_when_the_author_would_be_through_before_it(chunks, asked):
    assert (slow_and_slower(chunks, 9.0).ask(ANN, 9.0) is not None) is asked


def test_a_source_that_trails_gets_no_more_time_for_a_chunk_than_others():
    """It had twice what it takes: the slower it was, the longer it was waited for."""
    download = begun(9)
    download.join(ANN, [ME], ME)
    give(download, ANN, download.ask(ANN, 0.0), 30.0)  # type: ignore[arg-type]
    held = download.ask(ANN, 30.0)
    download.join(BOB, [ME], ME)
    while (index := download.ask(BOB, 30.0)) is not None:
        give(download, BOB, index, 30.2)
    assert download.ask(BOB, 30.0 + LATE_S) is None
    assert download.ask(BOB, 30.3 + LATE_S) == held


@pytest.mark.slow
@settings(max_examples=examples(60), deadline=None)
@given(seed=st.integers(0, 2**32), chunks=st.integers(1, 40), helpers=st.integers(0, 3))
def test_whatever_sources_do_the_rest_completes_it_within_the_bounds(seed, chunks, helpers):
    rng, now = random.Random(seed), 0.0
    download, peers = begun(chunks), [AUTHOR, *(PeerId(f"helper{number}") for number in range(helpers))]
    under_way: dict[PeerId, list[int]] = {}
    for _ in range(5000):
        if download.done:
            break
        now += rng.choice([0.01, 0.3, 4.0])
        peer = rng.choice(peers)
        if peer not in under_way:
            download.join(peer, sorted([ME, *peers[1:]]), ME)
            under_way[peer] = []
        under_way[peer] += all_asked(download, peer, now)
        everywhere = [index for asked in under_way.values() for index in asked if not download.has(index)]
        assert len(under_way[peer]) <= AHEAD
        assert all(everywhere.count(index) <= 2 for index in everywhere)
        assert sum(everywhere.count(index) > 1 for index in set(everywhere)) <= TWICE
        if not under_way[peer]:
            continue
        match rng.randrange(6):
            case 0:
                download.leave(peer)
                del under_way[peer]
            case 1 if peer != AUTHOR:
                download.refused(peer, under_way[peer].pop(0), now)
            case 2 if peer != AUTHOR:
                download.waits(peer, under_way[peer][0], now)
            case _:
                give(download, peer, under_way[peer].pop(0), now)
    assert download.done
    assert blob_manifest_of(download.finish()) == manifest(chunks)


@pytest.mark.parametrize("backwards", [False, True])
def test_memory_follows_what_has_come_in_any_order(backwards):
    chunks = 48
    download = begun(chunks)
    order = range(chunks)[::-1] if backwards else range(chunks)
    download.join(AUTHOR, [ME], ME)
    tracemalloc.start()
    for number, index in enumerate(order, 1):
        give(download, AUTHOR, index, 0.1)
        if number == 3:
            assert tracemalloc.get_traced_memory()[1] < (number + 2) * CHUNK_BYTES, "not what was declared"
    whole = download.finish()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1.25 * len(whole)  # it grows by an eighth at a time


@pytest.mark.parametrize("claimed", [1, 10 * CHUNK_BYTES])
def test_an_address_and_a_size_that_contradict_each_other_are_the_authors_doing(claimed):
    """An author announced an honest node's blob with another size: who served it was charged for that, and banned."""
    named = manifest(3)
    download = Download(named.address, claimed, author=AUTHOR, began=0.0)
    with pytest.raises(AuthorLiedError):
        download.learn(named.encode())
    with pytest.raises(RemoteError) as other:
        download.learn(manifest(4).encode())
    assert not isinstance(other.value, AuthorLiedError), "a manifest of something else is its server's"


def test_the_share_of_one_that_does_not_pull_is_asked_of_a_slow_author_in_turn():
    """Ann, whose share is 0 and 3, pulls nothing; Bob says so again and again, and each time puts it off a little."""
    download = begun(6)
    for peer in (AUTHOR, BOB):
        download.join(peer, PULLERS, ME)
    now = 0.0
    for peer, index in ((AUTHOR, 2), (AUTHOR, 5), (BOB, 1), (BOB, 4)):
        assert download.ask(peer, now) == index
        now += 1.0
        give(download, peer, index, now)
    first, asked = now, None
    while asked is None and now < 100.0:
        for index in (0, 3):  # as several helpers would
            download.refused(BOB, index, now)
        now += LACKS_S
        asked = download.ask(AUTHOR, now)
    assert asked in (0, 3)
    assert now == first + LATE_S + 2 * LACKS_S, "we are the second after Ann"
