"""What keeps strangers from taking a node's places, dials, time and memory, piece by piece."""

import random
import struct
from contextlib import suppress

import pytest
import trio
from gossip_liars import Liar, join, refused
from gossip_samples import SCOPE, WELL_KNOWN, chain
from gossip_swarm import RUN, FakeRuntime, Swarm, identity, play, swarm, until
from hypothesis import given
from hypothesis import strategies as st
from libp2p.peer.id import ID

from gossip.actions import ActionQueue
from gossip.blobs.hashing_task import Hasher
from gossip.blobs.snapshots_task import REST, Snapshots
from gossip.core.announcement_limit import ANNOUNCE_PER_S
from gossip.core.api import Head
from gossip.core.digests import digest_of
from gossip.core.errors import RemoteError
from gossip.core.identity import Identity
from gossip.core.ids import PeerId
from gossip.core.messages import HeadersRequest, HelloRequest, Request, encode_answer
from gossip.core.rate_limit import MAX_NAMES, KeyedTokenBucket
from gossip.transport.base import Stream
from gossip.transport.libp2p.frame_meter import (
    FRAMES_OF_STRANGER,
    FRAMES_PER_SECOND,
    LIGHT_PER_SECOND,
    MAX_FRAME_BYTES,
    OPENING_FRAMES,
    OPENINGS_PER_SECOND,
    STRANGERS_PER_SECOND,
    FrameMeter,
    StrangerFrames,
)
from gossip.transport.libp2p.pubsub_limit import (
    BYTES_PER_SECOND,
    MAX_PER_SECOND,
    MAX_TOTAL_PER_SECOND,
    NEIGHBOUR_SHARE_PER_SECOND,
    SHARE_PER_SECOND,
    PubsubLimit,
)
from gossip.updates.audits import BASES_BURST
from gossip.updates.follower_task import UPDATES_PER_S
from gossip.updates.hash_chain import ChainPosition
from gossip.updates.mesh import IDLE_S, SWAP_EVERY_S, Mesh
from gossip.updates.publisher import Publisher
from gossip.updates.score_table import ScoreTable

HONEST = [PeerId(f"honest {n}") for n in range(8)]


# -- quotas


@given(times=st.lists(st.floats(0, 100), max_size=200))
def test_a_quota_grants_its_burst_and_its_rate_and_no_more(times: list[float]) -> None:
    it = KeyedTokenBucket(burst=5, per_s=2)
    granted = sum(it.take("a", at) for at in sorted(times))
    assert granted <= 5 + 2 * 100
    assert granted >= min(len(times), 5)


def test_a_reservation_says_how_long_to_wait() -> None:
    it = KeyedTokenBucket(burst=2, per_s=4)
    assert [it.reserve("a", 0.0) for _ in range(4)] == [0.0, 0.0, 0.25, 0.5]
    assert it.reserve("b", 0.0) == 0.0
    assert it.reserve("a", 10.0) == 0.0


def test_a_clock_that_is_set_back_takes_no_tokens() -> None:
    it = KeyedTokenBucket(burst=2, per_s=4)
    assert it.take("a", 86_400.0)
    assert it.take("a", 0.0)
    assert not it.take("a", 0.0)
    assert it.take("a", 1.0)


def test_quotas_are_bounded() -> None:
    it = KeyedTokenBucket(burst=1, per_s=1)
    for n in range(MAX_NAMES + 50):
        it.take(str(n), 0.0)
    assert len(it) == MAX_NAMES


def test_a_quota_that_is_full_again_is_no_longer_remembered() -> None:
    it = KeyedTokenBucket(burst=2, per_s=1)
    it.spend("debtor", 10, 0.0)
    for n in range(50):
        it.take(str(n), 0.0)
    it.take("late", 5.0)
    assert len(it) == 52, "the one untouched longest has a debt still"
    it.take("late", 11.0)
    assert len(it) == 1
    assert it.left("debtor", 11.0) == it.left("0", 11.0) == 2


# -- places


@pytest.fixture
def full() -> Mesh:
    """Eight honest neighbours, each followed, with neighbours of its own."""
    actions = ActionQueue()
    made = Mesh(
        me=PeerId("me"),
        scope=SCOPE,
        degree=8,
        rng=random.Random(1),
        scores=ScoreTable(),
        actions=actions,
        evidence=WELL_KNOWN,
    )
    for peer in HONEST:
        made.admit(peer, 7, 0.0)
        follow(made, peer)
    return made


def follow(members: Mesh, peer: PeerId, neighbours: int = 7) -> None:
    members.table[peer].chain.apply(ChainPosition(epoch=1, seq=0, digest=digest_of(b""), round=0, raw=b""))
    members.table[peer].neighbours = neighbours


def test_a_flood_of_lonely_keys_takes_half_of_the_places_at_most(full: Mesh) -> None:
    for n in range(500):
        sybil = PeerId(f"sybil {n}")
        full.admit(sybil, 0, n * SWAP_EVERY_S)
        if sybil in full.table:
            follow(full, sybil, neighbours=0)
    assert set(HONEST[:4]) <= set(full.table)
    assert len(full.table) == 8


def test_places_change_hands_slowly(full: Mesh) -> None:
    for n in range(1000):
        full.admit(PeerId(f"sybil {n}"), 0, 100.0 + n / 100)
    assert len(set(HONEST) & set(full.table)) == 7


def test_who_gives_nothing_goes_first(full: Mesh) -> None:
    full.lose(HONEST[0], "")
    full.admit(PeerId("silent"), 7, 1.0)
    full.admit(PeerId("newcomer"), 0, 2.0 + IDLE_S)
    assert set(full.table) == {*HONEST[1:], "newcomer"}


def test_those_who_stay_lonely_do_not_shut_out_newcomers(full: Mesh) -> None:
    """All places taken by keys that say they are lonely, to be safe from those who say the same."""
    for n, peer in enumerate(HONEST):
        full.lose(peer, "")
        full.admit(PeerId(f"sybil {n}"), 0, 0.0)
        follow(full, PeerId(f"sybil {n}"), neighbours=0)
    full.admit(PeerId("newcomer"), 0, IDLE_S - 1)
    assert "newcomer" not in full.table
    full.admit(PeerId("newcomer"), 0, IDLE_S)
    assert "newcomer" in full.table


def test_a_peer_of_the_operators_always_gets_in_and_stays(full: Mesh) -> None:
    anchor = PeerId("anchor")
    assert not full.has_room_for(anchor, 1.0)
    full.anchors = frozenset({anchor})
    assert full.has_room_for(anchor, 1.0)
    full.admit(anchor, 7, 1.0)
    assert anchor in full.table
    assert len(full.table) == 8
    for n in range(100):
        full.admit(PeerId(f"sybil {n}"), 0, n * 10 * IDLE_S)
    assert anchor in full.table


def test_anchors_do_not_push_each_other_out(full: Mesh) -> None:
    full.anchors = frozenset({*HONEST, PeerId("anchor")})
    assert not full.has_room_for(PeerId("anchor"), 1.0)
    full.admit(PeerId("anchor"), 0, 1.0)
    assert set(full.table) == set(HONEST)


# -- dials


class Silent(Liar):
    """Takes every stream and says nothing."""

    async def handle_stream(self, protocol: str, stream: Stream) -> None:
        await trio.sleep_forever()


async def visit(it: Swarm, nursery: trio.Nursery, number: int, node: FakeRuntime) -> None:
    key = Identity(bytes([66, number]) + bytes(30))
    silent = Silent(key, it.network.attach(key.peer_id))
    await nursery.start(lambda *, task_status: silent.transport.run(silent, task_status=task_status))
    await silent.transport.dial(node.address)


async def test_connected_peers_that_say_nothing_do_not_keep_a_node_from_dialling(autojump_clock) -> None:
    async with swarm() as it, trio.open_nursery() as nursery:
        friend = it.make(2)
        node = await it.start(1, peers=(friend.address,))
        for number in range(40):
            await visit(it, nursery, number, node)
        await trio.sleep(60)
        await it.launch(friend)
        await node.begin()
        await friend.begin()
        await until(lambda: friend.peer in node.service.neighbours(), timeout_s=120)
        nursery.cancel_scope.cancel()


async def test_a_full_node_still_dials_the_peers_of_its_operator(autojump_clock) -> None:
    """Eight liars are there first, and all the places are theirs."""
    async with swarm() as it, trio.open_nursery() as nursery:
        friend = it.make(2)
        node = await it.start(1, peers=(friend.address,), degree=4)
        for number in range(4):
            key = Identity(bytes([67, number]) + bytes(30))
            liar = Liar(key, it.network.attach(key.peer_id), link=chain(1, by=key)[0].raw)
            await nursery.start(lambda *, task_status, liar=liar: liar.transport.run(liar, task_status=task_status))
            await liar.greet(node)
        assert len(node.service.neighbours()) == 4
        await it.launch(friend)
        await node.begin()
        await friend.begin()
        await until(lambda: friend.peer in node.service.neighbours(), timeout_s=200)
        await until(lambda: node.follows(friend))
        nursery.cancel_scope.cancel()


# -- work for the runtime


@pytest.mark.slow
async def test_a_neighbour_that_begins_anew_all_the_time_is_taken_slowly(autojump_clock) -> None:
    key, epochs = identity(66), iter(range(1, 1_000_000))
    links: list[bytes] = []

    def answer(request: Request) -> bytes | None:
        if isinstance(request, HeadersRequest):
            return encode_answer(links[-1:])
        return refused() if not isinstance(request, HelloRequest) else None

    async with swarm() as it, trio.open_nursery() as nursery:
        nodes = await it.start_all(4)
        liar = await join(it, nursery, nodes, answer=answer)
        began = trio.current_time()
        while trio.current_time() < began + 20:
            links.append(chain(1, by=key, epoch=next(epochs))[0].raw)
            await liar.transport.publish(links[-1])
            await trio.sleep(0.005)
        taken = sum(update.peer == liar.peer for update in nodes[0].received)
        assert BASES_BURST / 2 < taken <= BASES_BURST + 2, "more chains are not begun, so not followed"
        views = await play(nodes, range(1, 4))
        assert {view.closed_by for row in views for view in row} == {"quorum"}
        nursery.cancel_scope.cancel()


@pytest.mark.slow
async def test_honest_rounds_are_not_slowed_by_that(autojump_clock) -> None:
    async with swarm() as it:
        nodes = await it.start_all(3)
        began = trio.current_time()
        views = await play(nodes, range(1, 61))
        assert {view.closed_by for row in views for view in row} == {"quorum"}
        assert trio.current_time() - began < 60 / UPDATES_PER_S + 10


def publisher() -> Publisher:
    made = Publisher(identity(1), SCOPE, 8, 1 << 20)
    made.begin(epoch=1, round=0, base=RUN.genesis)
    return made


async def test_cutting_snapshots_takes_a_tenth_of_the_time_at_most(autojump_clock) -> None:
    it, cuts = publisher(), []

    async def source() -> tuple[Head, bytes]:
        cuts.append(trio.current_time())
        await trio.sleep(1.0)
        return it.head(), b"estimate %d" % len(cuts)

    snapshots = Snapshots(it, source, Hasher(1 << 40), lambda message: None)
    hasher = Hasher(1 << 40)
    for round_ in range(1, 101):
        it.extend(round=round_, codec="none", payload=await hasher.payload(b"%d" % round_), steps=1, tokens=1)
        with suppress(RemoteError):
            await snapshots.offer(1, round_)
        await trio.sleep(0.5)
    assert 1 < len(cuts) <= 1 + trio.current_time() / (1 + REST)
    it.extend(round=101, codec="none", payload=await hasher.payload(b"newest"), steps=1, tokens=1)
    await trio.sleep(1 + REST)
    assert (await snapshots.offer(1, 101)).seq == 101
    it.extend(round=102, codec="none", payload=await hasher.payload(b"newer"), steps=1, tokens=1)
    with pytest.raises(RemoteError, match="only just now"):
        await snapshots.offer(1, 102)
    assert (await snapshots.offer(1, 101)).seq == 101


# -- frames and broadcasts


def header(kind: int, flags: int, stream: int, length: int) -> bytes:
    return struct.pack(">BBHII", 0, kind, flags, stream, length)


def meter(strangers: StrangerFrames | None = None, *, kept: bool = False) -> FrameMeter:
    return FrameMeter({1}, strangers or StrangerFrames(), lambda: not kept)


def test_honest_frames_pass() -> None:
    it = meter()
    for second in range(5):
        for _ in range(5000):
            assert it.judge(header(0, 0, 1, 65_507), float(second)) is None
            assert it.judge(bytes(65_507), float(second)) is None
            assert it.judge(header(1, 0, 1, 65_507), float(second)) is None
        for stream in range(100):
            assert it.judge(header(1, 1, 3 + 2 * stream, 0), float(second)) is None


def test_a_body_is_not_taken_for_frames() -> None:
    it = meter()
    body = header(9, 0, 0, 0)
    assert it.judge(header(0, 0, 1, 24), 0.0) is None
    assert it.judge(body, 0.0) is None
    assert it.judge(body, 0.0) is None
    assert it.judge(body, 0.0) == "unknown_frame"


@pytest.mark.parametrize(
    "frame",
    [header(2, 1, 0, 7), header(2, 2, 0, 7), header(1, 0, 99, 1), header(1, 8, 99, 0), header(0, 0, 99, 0)],
    ids=["ping", "pong", "unknown window", "unknown reset", "unknown data"],
)
def test_floods_of_frames_that_carry_nothing_are_cut_off(frame: bytes) -> None:
    it = meter()
    faults = [it.judge(frame, 0.5) for _ in range(LIGHT_PER_SECOND + 1)]
    assert faults == [None] * LIGHT_PER_SECOND + ["frame_flood"]
    assert it.judge(frame, 1.5) is None


def test_openings_wait_for_the_next_second() -> None:
    it = meter()
    for number in range(OPENINGS_PER_SECOND):
        assert it.judge(header(1, 1, 3 + 2 * number, 0), 0.25) is None
        assert it.pause_for(0.25) == 0.0
    assert it.judge(header(1, 1, 9999, 0), 0.25) is None
    assert it.pause_for(0.25) == 0.75
    assert it.pause_for(1.0) == 0.0


TINY = header(0, 0, 1, 1)


def sent_before_a_pause(it: FrameMeter, frame: bytes, most: int, now: float = 0.25) -> int:
    """How many frames are read in one second before the connection is left alone."""
    for number in range(most):
        if it.pause_for(now):
            return number
        assert it.judge(frame, now) is None
        if frame == TINY:
            assert it.judge(b"x", now) is None
    return most


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("frame", [TINY, header(1, 0, 1, 1)], ids=["a byte", "window"])
def test_frames_beyond_what_a_link_carries_wait_for_the_next_second(frame: bytes, kept: bool) -> None:
    """A megabyte a second of frames with a byte each, on an open stream, took a core."""
    it = meter(kept=kept)
    assert sent_before_a_pause(it, frame, 2 * FRAMES_PER_SECOND) == FRAMES_PER_SECOND + 1
    assert it.pause_for(0.25) == 0.75
    assert it.pause_for(1.0) == 0.0


def test_frames_of_all_strangers_together_are_bounded_and_each_has_a_share() -> None:
    strangers = StrangerFrames()
    crowd = [meter(strangers) for _ in range(40)]
    read = [sent_before_a_pause(each, TINY, FRAMES_PER_SECOND) for each in crowd]
    assert sum(read) <= STRANGERS_PER_SECOND + len(crowd) * (FRAMES_OF_STRANGER + 1)
    assert min(read) == FRAMES_OF_STRANGER + 1
    assert sent_before_a_pause(meter(strangers, kept=True), TINY, FRAMES_PER_SECOND) == FRAMES_PER_SECOND
    assert sent_before_a_pause(meter(strangers), TINY, 1000, now=1.0) == 1000


def test_neighbours_frames_take_nothing_from_strangers() -> None:
    strangers = StrangerFrames()
    for _ in range(4):
        sent_before_a_pause(meter(strangers, kept=True), TINY, FRAMES_PER_SECOND)
    assert sent_before_a_pause(meter(strangers), TINY, 1000) == 1000


def test_a_crowd_that_opens_streams_is_bounded_with_its_frames() -> None:
    """Each of 256 strangers could open 250 streams a second, at 0.3 ms each: 19 cores."""
    strangers, opening = StrangerFrames(), header(1, 1, 3, 0)
    opened = sum(sent_before_a_pause(meter(strangers), opening, OPENINGS_PER_SECOND) for _ in range(100))
    share = FRAMES_OF_STRANGER // (1 + OPENING_FRAMES) + 1
    assert opened <= STRANGERS_PER_SECOND // (1 + OPENING_FRAMES) + 1 + 100 * share


def test_a_frame_larger_than_a_window_is_refused_before_its_body() -> None:
    assert meter().judge(header(0, 0, 1, MAX_FRAME_BYTES), 0.0) is None
    assert meter().judge(header(0, 0, 1, MAX_FRAME_BYTES + 1), 0.0) == "frame_too_large"


PEERS = [ID(b"%d" % n) for n in range(300)]


def admitted(it: PubsubLimit, peer: ID, times: int, now: float, *, own: bool = True, neighbour: bool = False) -> int:
    return sum(it.admits(peer, now, own=own, neighbour=neighbour) for _ in range(times))


def test_broadcasts_are_bounded_by_peer_and_in_all_and_everybody_keeps_a_share() -> None:
    it = PubsubLimit()
    assert admitted(it, PEERS[0], 1000, 1.0) == MAX_PER_SECOND
    others = sum(admitted(it, peer, 100, 1.5) for peer in PEERS[1:101])
    assert others + MAX_PER_SECOND <= MAX_TOTAL_PER_SECOND + 100 * SHARE_PER_SECOND
    assert all(admitted(it, peer, 1, 1.9) for peer in PEERS[200:])
    assert admitted(it, PEERS[0], 1, 2.0) == 1


def test_what_a_neighbour_says_of_itself_is_heard_in_any_flood() -> None:
    """A share of two a second lost half of the updates of quarter-second rounds; and what neighbours pass on of the
    flood used it up."""
    it = PubsubLimit()
    for peer in PEERS[:10]:
        admitted(it, peer, 1000, 1.0, own=False)
    assert admitted(it, PEERS[50], 100, 1.1, own=False, neighbour=True) == 0
    assert admitted(it, PEERS[50], 100, 1.2, neighbour=True) == NEIGHBOUR_SHARE_PER_SECOND
    assert admitted(it, PEERS[51], 100, 1.2) == SHARE_PER_SECOND
    assert NEIGHBOUR_SHARE_PER_SECOND >= ANNOUNCE_PER_S


def test_frames_wait_for_the_next_second() -> None:
    it = PubsubLimit()
    assert it.pause_for(PEERS[0], BYTES_PER_SECOND, 3.25) == 0.0
    assert it.pause_for(PEERS[0], 1, 3.25) == 0.75
    assert it.pause_for(PEERS[1], 1, 3.25) == 0.0
    assert it.pause_for(PEERS[0], 1, 4.0) == 0.0
