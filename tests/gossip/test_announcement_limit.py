"""Floods of valid announcements: who sends too many of its own is charged, and nobody else loses by it."""

import random

import pytest
import trio
from gossip_liars import counted, join
from gossip_samples import ALICE, BOB, CAROL, SCOPE, chain, link
from gossip_swarm import CONFIG, RUN, all_follow, identity, play, swarm, until

from gossip.core.announcement_limit import ANNOUNCE_BURST, ANNOUNCE_PER_S, LINKS_BURST, LINKS_PER_S
from gossip.core.errors import Reason, RemoteError
from gossip.core.ids import PeerId
from gossip.core.messages import Hello
from gossip.engine import Engine
from gossip.hellos.hello import HELLO_BURST
from gossip.updates.follower_task import UPDATES_PER_S
from gossip.updates.score_table import BAN_AT, POINTS

A, B, C = ALICE.peer_id, BOB.peer_id, CAROL.peer_id
EXCESS_TO_BAN = round(BAN_AT / POINTS[Reason.FLOODED])


@pytest.fixture
def it() -> Engine:
    engine = Engine(identity=identity(9), config=CONFIG, run=RUN, rng=random.Random(1))
    for peer in (A, B):
        engine.mesh.admit(peer, 1, 0.0)
    return engine


def genesis(number: int) -> bytes:
    return link(by=ALICE, epoch=number).raw


def points(it: Engine, peer: PeerId, now: float = 0.0) -> float:
    return it.peer_scores.scores.points(peer, now)


def test_an_honest_rate_is_never_charged(it):
    now = 0.0
    links = chain(ANNOUNCE_BURST + 1000)
    for each in links[:ANNOUNCE_BURST]:
        assert it.on_message(A, each.raw, now)
    for each in links[ANNOUNCE_BURST:]:
        now += 1 / ANNOUNCE_PER_S
        assert it.on_message(A, each.raw, now)
    assert points(it, A, now) == 0
    assert LINKS_PER_S >= 2 * ANNOUNCE_PER_S >= 2 * UPDATES_PER_S


def test_a_pause_of_ours_in_which_announcements_queue_up_bans_nobody(it):
    silence_ends_a_connection_after = 20
    for number in range(round(ANNOUNCE_PER_S * silence_ends_a_connection_after)):
        it.on_message(A, genesis(number + 1), 30.0)
    assert 0 < points(it, A, 30.0) < BAN_AT
    assert A in it.neighbours


@pytest.mark.parametrize("repeated", [False, True], ids=["new links", "one link again and again"])
def test_who_floods_with_links_of_its_own_is_charged_and_banned(it, repeated):
    links, number = chain(LINKS_BURST + EXCESS_TO_BAN + 1), 0
    while not it.peer_scores.scores.banned(A, 0.0):
        it.on_message(A, links[0 if repeated else number].raw, 0.0)
        number += 1
    assert number == LINKS_BURST + EXCESS_TO_BAN
    assert it.peer_scores.stats.rejected == {(A, Reason.FLOODED): EXCESS_TO_BAN}
    assert A not in it.neighbours
    assert it.on_message(A, links[number].raw, 0.0) is False


def test_who_passes_a_flood_on_is_not_charged_and_neither_is_its_signer(it):
    """A recording of somebody's links, played back, must not get it banned."""
    for number in range(1000):
        it.on_message(B, genesis(number + 1), 0.0)
    assert (points(it, A), points(it, B)) == (0, 0)
    assert it.peer_scores.stats.rejected[B, Reason.FLOODED] == 1000 - LINKS_BURST


def test_a_recording_played_back_by_a_third_does_not_silence_the_signer(it):
    *recorded, newest = chain(1001)
    for each in recorded:
        it.on_message(B, each.raw, 0.0)
    assert it.on_message(A, newest.raw, 0.0)
    announced = it.neighbours[A].chain.announced
    assert announced is not None
    assert announced.seq == 1000


def test_what_a_banned_signer_says_goes_no_further_whoever_brings_it(it):
    it.offence(A, RemoteError(Reason.EQUIVOCATION), 0.0)
    known = genesis(1)
    assert it.on_message(B, known, 0.0) is False
    assert it.on_message(B, known, 10.0) is False
    assert it.peer_scores.stats.rejected[A, Reason.BANNED] == 2
    assert it.on_message(B, chain(1, by=CAROL)[0].raw, 0.0)


def test_hellos_beyond_their_rate_are_charged(it):
    raw = Hello(scope=SCOPE, genesis=RUN.genesis, neighbours=1, admitted=True, link=b"").encode()
    for number in range(HELLO_BURST + 10):
        if number < HELLO_BURST:
            it.on_hello(B, raw, 0.0)
        else:
            with pytest.raises(RemoteError) as caught:
                it.on_hello(B, raw, 0.0)
            assert caught.value.reason is Reason.UNAVAILABLE
    assert points(it, B) == 10 * POINTS[Reason.FLOODED]


@pytest.mark.slow
async def test_a_node_of_very_short_rounds_keeps_to_the_rate_and_its_last_word_is_heard(autojump_clock):
    async with swarm() as it:
        nodes = await it.start_all(3, degree=2, reannounce_s=600.0, heartbeat_s=600.0, silence_s=3000.0)
        said: list[float] = []
        publish = nodes[0].transport.publish

        async def counted_publish(data: bytes) -> None:
            said.append(trio.current_time())
            await publish(data)

        nodes[0].transport.publish = counted_publish  # type: ignore[method-assign]
        began = trio.current_time()
        for round_ in range(1, 401):
            await nodes[0].publish(round_)
            await trio.sleep(0.005)
        await until(lambda: all_follow(nodes))
        took = trio.current_time() - began
        assert len(said) <= ANNOUNCE_BURST + ANNOUNCE_PER_S * took + 1
        assert not any(node.service.stats.rejected for node in nodes)
        assert trio.current_time() - began < 2.0 + 2.0, "the newest link is told when its turn comes"


@pytest.mark.slow
async def test_a_member_that_floods_is_refused_in_the_end_and_quarter_second_rounds_go_on(autojump_clock):
    key = identity(66)
    async with swarm() as it, trio.open_nursery() as nursery:
        nodes = await it.start_all(4)
        liar = await join(it, nursery, nodes)

        async def flood() -> None:
            for number in range(1, 100_000):
                await liar.transport.publish(link(by=key, epoch=number).raw)
                if number % 5 == 0:
                    await trio.sleep(0.01)

        nursery.start_soon(flood)
        for round_ in range(1, 41):
            began = trio.current_time()
            views = await play(nodes, [round_])
            assert {view.closed_by for row in views for view in row} == {"quorum"}
            assert all(
                view.staleness[other.peer] <= 1
                for (row,) in [views]
                for view, node in zip(row, nodes, strict=True)
                for other in nodes
                if other is not node
            )
            await trio.sleep_until(began + 0.25)
        for node in nodes:
            assert [event.reason for event in node.told("banned")] == [Reason.FLOODED]
            assert liar.peer not in node.transport.peers
            assert not node.transport.drops["pubsub_flood"]
        assert counted(nodes, liar) == [{Reason.FLOODED}] * 4
        honest = {node.peer for node in nodes}
        assert not any(node.service._engine.peer_scores.scores.points(peer, 0.0) for node in nodes for peer in honest)
        nursery.cancel_scope.cancel()
