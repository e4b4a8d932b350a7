import gc
import random
import tracemalloc
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest
import trio
from gossip_samples import SCOPE, record
from hypothesis import given
from hypothesis import strategies as st

from gossip.blobs.hashing_task import Hasher
from gossip.core.api import MAX_COUNTED_PEERS, OTHER_PEERS, GossipStats
from gossip.core.backoff import MAX_TARGETS, Backoff, addresses_in, peer_in
from gossip.core.digests import digest_of
from gossip.core.envelope import open_envelope
from gossip.core.errors import LocalError, Reason
from gossip.core.identity import Identity
from gossip.core.ids import Digest, PeerId
from gossip.core.limits import MAX_BLOB_BYTES, MAX_HELLO_RECORDS
from gossip.core.statements import PeerRecord, parse_record
from gossip.discovery.peerstore import (
    MAX_FAR,
    MAX_RECORDS,
    MAX_RECORDS_OF_REGIONS,
    NEAR_DEPTH,
    OF_FAR_REGIONS,
    OF_OWN_REGION,
    OF_REGIONS_BESIDE,
    REMINDED,
    PeerStore,
    RecordTrust,
)
from gossip.discovery.peerstore_file_task import SAVE_EVERY_S, PeerStoreKeeper
from gossip.discovery.told_records import MAX_TOLD, MAX_TOLD_PEERS, ToldPeers, ToldRecords
from gossip.discovery.topology import Rings
from gossip.updates.neighbour import Neighbour
from gossip.updates.score_table import BAN_AT, BAN_S, HALF_LIFE_S, MAX_SCORED_PEERS, POINTS, ScoreTable

PEER = PeerId("peer")


def test_every_reason_has_its_price():
    assert set(POINTS) == set(Reason)


def test_points_add_up_to_a_ban_once():
    it = ScoreTable()
    assert [it.charge(PEER, Reason.FORGED, 0.0) for _ in range(3)] == [False, True, False]
    assert it.banned(PEER, BAN_S - 1)
    assert not it.banned(PEER, BAN_S + 1)


def test_points_decay():
    it = ScoreTable()
    it.charge(PEER, Reason.FORGED, 0.0)
    assert it.points(PEER, HALF_LIFE_S) == pytest.approx(25.0)
    assert not it.charge(PEER, Reason.FORGED, HALF_LIFE_S)


def test_a_timeout_every_minute_never_bans():
    it = ScoreTable()
    assert not any(it.charge(PEER, Reason.TIMEOUT, 60.0 * n) for n in range(1000))


@pytest.mark.parametrize("reason", [Reason.WRONG_SWARM, Reason.WRONG_RUN, Reason.WRONG_MODEL])
def test_who_tries_with_wrong_settings_for_two_minutes_may_correct_them(reason):
    it = ScoreTable()
    a_minute = (0, 0, 1, 1, 3, 3, 9, 20, 20, 36, 36, 59, 59)  # the refusals that a newcomer met, played with two nodes
    for start in (0.0, 70.0):
        assert not any(it.charge(PEER, reason, start + second) for second in a_minute)
    assert any(it.charge(PEER, reason, 140.0 + again) for again in range(20)), "not for ever"


def test_equivocation_bans_for_good():
    it = ScoreTable()
    assert it.charge(PEER, Reason.EQUIVOCATION, 0.0)
    it.charge(PEER, Reason.FORGED, 1.0)
    assert it.banned(PEER, 1e12)


def test_scores_are_bounded_and_bans_outlast_small_offences():
    it = ScoreTable()
    it.charge(PEER, Reason.EQUIVOCATION, 0.0)
    for n in range(MAX_SCORED_PEERS * 2):
        it.charge(PeerId(str(n)), Reason.TIMEOUT, float(n))
    assert len(it) == MAX_SCORED_PEERS
    assert it.banned(PEER, 1e6)


def test_a_table_full_of_bans_still_bans_who_offends():
    it = ScoreTable()
    for n in range(MAX_SCORED_PEERS):
        it.charge(PeerId(str(n)), Reason.EQUIVOCATION, float(n))
    now = float(MAX_SCORED_PEERS)
    assert [it.charge(PEER, Reason.FORGED, now) for _ in range(2)] == [False, True]
    assert it.banned(PEER, now)
    assert len(it) == MAX_SCORED_PEERS
    assert not it.banned(PeerId("0"), now), "the longest untouched ban has made room"
    assert all(it.banned(PeerId(str(n)), now) for n in range(1, MAX_SCORED_PEERS))


@given(st.lists(st.sampled_from(Reason), max_size=60))
def test_nobody_is_banned_below_the_threshold(reasons):
    it = ScoreTable()
    for reason in reasons:
        it.charge(PEER, reason, 0.0)
    assert it.banned(PEER, 0.0) == (sum(POINTS[reason] for reason in reasons) >= BAN_AT)


def test_rejections_are_counted_for_a_bounded_number_of_peers():
    it = GossipStats()
    for n in range(MAX_COUNTED_PEERS + 50):
        it.count_rejection(PeerId(str(n)), Reason.STALE)
        it.count_rejection(PeerId(str(n)), Reason.FORGED)
    assert len({peer for peer, _ in it.rejected}) == MAX_COUNTED_PEERS + 1
    assert it.rejected[OTHER_PEERS, Reason.STALE] == 50
    assert it.rejected_by_reason == {Reason.STALE: MAX_COUNTED_PEERS + 50, Reason.FORGED: MAX_COUNTED_PEERS + 50}


def opened(raw: bytes) -> PeerRecord:
    return parse_record(open_envelope(raw, SCOPE))


def test_the_newest_record_holds():
    it, one = PeerStore(), Identity(b"\x09" * 32)
    newer = opened(record(by=one, version=2, addresses=(f"/memory/2/p2p/{one.peer_id}",)))
    assert it.learn(newer, first_hand=True)
    assert not it.learn(opened(record(by=one, version=1)), first_hand=True)
    assert it.addresses(one.peer_id) == newer.addresses
    assert it.standing(one.peer_id) is RecordTrust.FIRST_HAND
    assert it.learn(opened(record(by=one, epoch=2, version=1)), first_hand=False)
    assert it.standing(one.peer_id) is RecordTrust.HEARSAY
    it.forget(one.peer_id)
    assert it.addresses(one.peer_id) == ()


def made_up(name: str, region: str = "") -> PeerRecord:
    addresses = (f"/memory/{name}/p2p/{name}",)
    return PeerRecord(peer=PeerId(name), epoch=1, version=1, addresses=addresses, raw=name.encode(), region=region)


def verified(it: PeerStore, name: str, region: str = "") -> None:
    it.learn(made_up(name, region), first_hand=True)
    it.reached(PeerId(name), f"/memory/{name}/p2p/{name}")


def test_a_record_is_handed_on_only_when_its_signer_answered_where_it_says():
    """Anybody may sign any address, for a whole swarm to dial."""
    it, peer, anybody = PeerStore(), PeerId("a"), random.Random(1)
    it.learn(made_up("a"), first_hand=True)
    assert it.sample(anybody, without=PeerId("")) == ()
    it.reached(peer, "/memory/elsewhere/p2p/a")
    assert it.sample(anybody, without=PeerId("")) == ()
    it.reached(peer, "/memory/a/p2p/a")
    assert it.standing(peer) is RecordTrust.VERIFIED
    assert it.sample(anybody, without=PeerId("")) == (b"a",)
    moved = replace(made_up("a"), version=2, addresses=("/memory/victim/p2p/a",))
    it.learn(moved, first_hand=True)
    assert it.sample(anybody, without=PeerId("")) == ()


def test_the_book_and_what_it_hands_on_are_bounded():
    it = PeerStore()
    for n in range(MAX_RECORDS + 20):
        verified(it, str(n))
    assert len(it) == MAX_RECORDS
    sample = it.sample(random.Random(1), without=PeerId("100"))
    assert len(set(sample)) == MAX_HELLO_RECORDS
    assert b"100" not in it.sample(random.Random(1), without=PeerId("100"))


def test_a_neighbour_is_told_of_a_record_once_and_reminded_of_a_few():
    it, neighbour, rng = PeerStore(), Neighbour(PeerId("0"), 0.0), random.Random(1)

    def hello() -> tuple[bytes, ...]:
        told = it.sample(rng, without=neighbour.peer, told=neighbour.told.names())
        neighbour.told.add(told)
        return told

    for n in range(50):
        verified(it, str(n))
    first, second = hello(), hello()
    assert len(first) == MAX_HELLO_RECORDS
    assert len(set(first) & set(second)) == REMINDED
    assert set(first) | set(second) == {str(n).encode() for n in range(1, 50)}
    assert [len(hello()) for _ in range(5)] == [REMINDED] * 5
    assert len({raw for _ in range(200) for raw in hello()}) > 40, "it is reminded of all in time"
    verified(it, "new")
    assert b"new" in hello()
    neighbour.told.add(str(n).encode() for n in range(2 * MAX_TOLD))
    assert len(neighbour.told) == MAX_TOLD


def test_of_its_own_region_one_is_told_most_and_of_regions_that_it_does_not_hear_few():
    it = PeerStore()
    for n in range(90):
        verified(it, str(n), ("east", "west", "far")[n % 3])
    verified(it, "me", "east")

    def counts(told: frozenset[Digest] = frozenset()) -> list[int]:
        found = it.sample(random.Random(1), without=PeerId("me"), told=told, regions={"east", "west"})
        return [sum(int(raw) % 3 == region for raw in found) for region in range(3)]

    assert counts() == [OF_OWN_REGION, OF_REGIONS_BESIDE, OF_FAR_REGIONS]
    known = frozenset(digest_of(str(n).encode()) for n in range(90) if n % 3 == 0)
    assert counts(known) == [REMINDED, OF_REGIONS_BESIDE, OF_FAR_REGIONS], "others do not fill up"


def test_of_those_that_it_does_not_belong_beside_it_is_told_a_few_at_a_time_and_in_the_end_all():
    it, told, rng = PeerStore(), ToldRecords(), random.Random(1)
    for n in range(200):
        verified(it, str(n), "east")
    rings, beside = Rings(PeerId("me"), SCOPE, 8), ["7", "8"]

    def hello() -> list[str]:
        found = it.sample(
            rng,
            without=PeerId("0"),
            rings=rings,
            told=told.names(),
            first=lambda peers: beside,
            regions={"east"},
        )
        told.add(found)
        return [raw.decode() for raw in found]

    on_rings = rings.beside(PeerId("0"), [str(n) for n in range(1, 200)], NEAR_DEPTH)
    first = hello()
    assert {*on_rings, *beside} < {*first}
    assert len(first) == len({*on_rings, *beside}) + OF_OWN_REGION
    heard = {*first}
    for _ in range(50):
        more = {*hello()}
        assert len(more - heard) <= OF_OWN_REGION
        heard |= more
    assert heard == {str(n) for n in range(1, 200)}


def test_what_peers_have_is_remembered_of_few_and_not_beyond_a_connection():
    it = ToldPeers()
    it.of(PeerId("0")).add([b"a record"])
    assert digest_of(b"a record") in it.of(PeerId("0")).names()
    it.forget(PeerId("0"))
    assert digest_of(b"a record") not in it.of(PeerId("0")).names()
    for n in range(2 * MAX_TOLD_PEERS):
        it.of(PeerId(str(n)))
    assert len(it) == MAX_TOLD_PEERS


def test_what_all_peers_have_takes_little_memory():
    it, records = ToldPeers(), [n.to_bytes(64, "big") for n in range(MAX_TOLD)]
    gc.collect()
    tracemalloc.start()
    try:
        for n in range(MAX_TOLD_PEERS):
            it.of(PeerId(str(n))).add(records)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert all(len(it.of(PeerId(str(n)))) == MAX_TOLD for n in range(MAX_TOLD_PEERS))
    assert taken < 12 * MAX_TOLD * MAX_TOLD_PEERS, "eight bytes each; a set of digests takes 150"


def test_hearsay_is_not_handed_on_and_pushes_nobody_out():
    it = PeerStore()
    for n in range(20):
        verified(it, f"known {n}")
    for n in range(2 * MAX_RECORDS):
        it.learn(made_up(f"told {n}"), first_hand=False)
    assert len(it) == MAX_RECORDS
    assert {f"known {n}" for n in range(20)} <= {entry.peer for entry in it.known()}
    assert sorted(it.sample(random.Random(1), without=PeerId(""))) == sorted(f"known {n}".encode() for n in range(20))


def region_is_near(record: PeerRecord) -> bool:
    return record.region == "near"


def test_a_full_book_of_a_run_with_regions_drops_far_members_beyond_their_places_first():
    it = PeerStore(needs=region_is_near)
    for n in range(MAX_FAR + 8):
        verified(it, f"far {n}", "far")
    for n in range(MAX_RECORDS + 4):
        verified(it, f"near {n}", "near")
    left = {each.peer for each in it.known()}
    assert len(left) == MAX_RECORDS_OF_REGIONS
    assert {f"near {n}" for n in range(MAX_RECORDS - 1)} <= left, "far ones that were there before make room"
    assert sum(each.startswith("far") for each in left) == MAX_FAR, "and then the newest, near as they are"


@pytest.mark.parametrize(("others", "dropped"), [(0, "near"), (MAX_FAR, "far")])
def test_of_a_network_with_too_many_far_members_go_first_where_there_are_too_many_of_these(others: int, dropped: str):
    """A network's surplus goes first; of it a far member only where far ones have more than their places."""
    it = PeerStore(needs=region_is_near)
    crowd = [
        *(("near", n) for n in range(100)),
        *(("far", n) for n in range(5)),
        *(("near", n) for n in range(100, 150)),
    ]
    for region, n in crowd:
        name = f"crowd {region} {n}"
        it.learn(made_up(name, region), first_hand=True)
        it.reached(PeerId(name), f"/memory/{name}/p2p/{name}", "203.0.113.0/24")
    for n in range(others):
        verified(it, f"far {n}", "far")
    for n in range(MAX_RECORDS_OF_REGIONS - len(crowd) - others):
        verified(it, f"near {n}", "near")
    before = {each.peer for each in it.known()}
    assert len(before) == MAX_RECORDS_OF_REGIONS
    verified(it, "late", "near")
    (gone,) = before - {each.peer for each in it.known()}
    assert gone.startswith(f"crowd {dropped}")


def test_who_gave_its_record_counts_no_more_among_those_that_others_told_of():
    it = PeerStore()
    it.learn(made_up("told"), first_hand=False, teller="a liar")
    it.learn(made_up("told"), first_hand=True)
    for n in range(MAX_RECORDS):
        it.learn(made_up(str(n)), first_hand=True)
    assert PeerId("told") not in {each.peer for each in it.known()}, "the oldest of those that came by themselves"


def test_who_has_moved_while_we_were_away_is_no_more_trusted_than_who_says_so():
    one = Identity(b"\x09" * 32)
    before, again = PeerStore(), PeerStore()
    before.learn(opened(record(by=one)), first_hand=True)
    before.reached(one.peer_id, before.addresses(one.peer_id)[0])
    assert again.recall(before.dump(), SCOPE) == 1
    assert again.standing(one.peer_id) is RecordTrust.KEPT
    moved = opened(record(by=one, version=2, addresses=(f"/memory/victim/p2p/{one.peer_id}",)))
    again.learn(moved, first_hand=False)
    assert again.standing(one.peer_id) is RecordTrust.HEARSAY
    assert not again.established()


def test_attempts_back_off_without_giving_up():
    it, now = Backoff(least=1.0, most=60.0, rng=random.Random(1)), 0.0
    pauses = []
    for _ in range(50):
        assert it.due("a", now)
        it.failed("a", now)
        assert not it.due("a", now)
        start = now
        while not it.due("a", now):
            now += 0.25
        pauses.append(now - start)
    assert pauses[0] <= 1.75
    assert 30.0 <= max(pauses) <= 90.25
    it.succeeded("a")
    assert it.due("a", 0.0)


def test_attempts_are_bounded():
    it = Backoff(least=1.0, most=60.0, rng=random.Random(1))
    for n in range(MAX_TARGETS + 10):
        it.failed(str(n), 0.0)
    assert len(it) == MAX_TARGETS


@pytest.mark.parametrize(
    "address", ["", "localhost:4001", "/ip4/127.0.0.1/tcp/1", "/p2p/", "/ip4/1.2.3.4/tcp/1/p2p/me"]
)
def test_what_is_no_address_is_said_to_be_none(address):
    with pytest.raises(LocalError):
        peer_in(address)


def test_a_peers_file(tmp_path):
    path = tmp_path / "peers"
    assert addresses_in(path) == []
    path.write_text("# ours\n\n  /memory/1/p2p/x  \n/memory/2/p2p/y\n")
    assert addresses_in(path) == ["/memory/1/p2p/x", "/memory/2/p2p/y"]
    path.write_bytes(b"\xff\xfe")
    assert len(addresses_in(path)) == 1


def test_it_counts_whenever_it_changes_whom_we_have_met():
    it, rng, seen = PeerStore(), random.Random(1), Counter[str]()
    names = [str(n) for n in range(40)]

    def met() -> set[str]:
        return {name for name in names if it.standing(PeerId(name)) >= RecordTrust.FIRST_HAND}

    for turn in range(600):
        before, count, peer = met(), it.met_changes, rng.choice(names)
        match rng.randrange(8):
            case 0:
                it.forget(PeerId(peer))
            case 1:
                it.reached(PeerId(peer), f"/memory/{peer}/p2p/{peer}")
            case each:
                moved = replace(made_up(peer), epoch=turn, addresses=(f"/memory/{turn % 3}/p2p/{peer}",))
                it.learn(moved, first_hand=each > 4)
        if met() != before:
            assert it.met_changes > count
            seen["come" if met() > before else "gone"] += 1
    assert min(seen["come"], seen["gone"]) > 50


async def test_a_book_that_could_not_be_written_is_written_when_it_can_and_told_of_once_an_outage(
    tmp_path, autojump_clock
):
    """A second full disk, weeks after the first one, was told to nobody."""
    path = tmp_path / "away" / "book"
    warnings: list[str] = []
    context = SimpleNamespace(
        config=SimpleNamespace(address_book=path), warn=warnings.append, hasher=Hasher(2 * MAX_BLOB_BYTES)
    )
    store = PeerStore()
    keeper = PeerStoreKeeper(context, store)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(keeper.run)
        for outage in (1, 2):
            store.changed = True
            await trio.sleep(3 * SAVE_EVERY_S)
            assert len(warnings) == outage
            assert store.changed
            path.parent.mkdir()
            await trio.sleep(2 * SAVE_EVERY_S)
            assert not store.changed
            path.unlink()
            path.parent.rmdir()
        nursery.cancel_scope.cancel()
