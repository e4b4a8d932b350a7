"""What a scrape reads of the network: how long blobs took to pull, and what waits where."""

import pytest
import trio
from gossip_swarm import all_follow, swarm, until

from gossip.core.api import BLOB_BOUNDS_S, Durations
from gossip.core.errors import Reason
from gossip.core.limits import CHUNK_BYTES
from gossip.transport.memory.network import LinkQuality

EMPTY = {"updates": 0, "pulls": 0, "serving": 0}


def test_durations_are_counted_at_their_bound_and_below():
    durations = Durations(bounds_s=(0.1, 1.0))
    for seconds in (0.0, 0.1, 0.2, 1.0, 1.1, 50.0):
        durations.add(seconds)
    assert durations.counts == [2, 2, 2]
    assert durations.sum_s == pytest.approx(52.4)


def test_bounds_go_from_a_millisecond_to_ten_minutes():
    assert (BLOB_BOUNDS_S[0], BLOB_BOUNDS_S[-1]) == (0.001, 600.0)
    assert list(BLOB_BOUNDS_S) == sorted(set(BLOB_BOUNDS_S))


def pulled(node) -> int:
    return sum(node.service.stats.blob_seconds.counts)


async def test_every_blob_pulled_is_counted_once_and_a_genesis_is_none(autojump_clock):
    async with swarm() as it:
        nodes = await it.start_all(3)
        assert [pulled(node) for node in nodes] == [0, 0, 0]
        for round_ in range(1, 5):
            for node in nodes:
                await node.publish(round_)
            await until(lambda: all_follow(nodes))
        assert [pulled(node) for node in nodes] == [8, 8, 8]
        late = await it.start(9, peers=(nodes[0].address,))
        await until(lambda: all(late.follows(node) for node in nodes))
        with_payload = [update for update in late.received if update.payload is not None]
        assert pulled(late) == len(with_payload) > 0


async def test_a_snapshot_is_a_blob_too(autojump_clock):
    async with swarm() as it:
        one, other = await it.start_all(2)
        it.network.set_link(one.peer, other.peer, LinkQuality(loss=1.0))
        for round_ in range(1, 21):
            await one.publish(round_)
        it.network.set_link(one.peer, other.peer, LinkQuality())
        await until(lambda: other.follows(one))
        assert [update.kind for update in other.received] == ["genesis", "snapshot"]
        assert pulled(other) == 1


async def test_the_time_is_from_the_first_request_to_the_last_chunk(autojump_clock):
    async with swarm() as it:
        one, other = await it.start_all(2)
        it.network.set_link(one.peer, other.peer, LinkQuality(latency_s=0.25))
        await one.publish(1, b"a small blob comes with its manifest")
        await until(lambda: other.follows(one))
        durations = other.service.stats.blob_seconds
        assert durations.sum_s == pytest.approx(0.5)
        assert dict(zip(durations.bounds_s, durations.counts, strict=False))[1.0] == 1
        await one.publish(2, bytes(3 * CHUNK_BYTES))
        await until(lambda: other.follows(one))
        assert durations.sum_s >= 0.5 + 4 * 0.5, "the manifest, and three chunks one after another"
        assert sum(durations.counts) == 2


async def test_a_pull_that_failed_is_not_counted_and_no_longer_under_way(autojump_clock):
    async with swarm() as it:
        one, other = await it.start_all(2)
        it.network.set_link(one.peer, other.peer, LinkQuality(latency_s=0.25))
        await one.publish(1, bytes(3 * CHUNK_BYTES))
        await until(lambda: other.service.queues()["pulls"] == 1)
        one.scope.cancel()
        await until(lambda: not other.service.neighbours())
        assert pulled(other) == 0
        assert other.service.queues() == EMPTY


async def test_a_refused_blob_was_pulled_all_the_same(autojump_clock):
    async with swarm() as it:
        one, other = await it.start_all(2)
        other.verdict = lambda update: Reason.NONFINITE if update.seq == 1 else None
        await one.publish(1)
        await until(lambda: len(other.received) == 2)
        assert pulled(other) == 1


@pytest.mark.slow
async def test_a_stalled_runtime_shows_as_updates_that_wait(autojump_clock):
    async with swarm() as it:
        nodes = await it.start_all(4)
        stalled, *others = nodes
        stalled.ready = trio.Event()
        for node in others:
            await node.publish(1)
        await until(lambda: stalled.service.queues()["updates"] == 3)
        await trio.sleep(60)
        assert stalled.service.queues() == EMPTY | {"updates": 3}
        assert others[0].service.queues() == EMPTY
        stalled.ready.set()
        await until(lambda: all_follow([stalled, *others]))
        assert stalled.service.queues() == EMPTY


async def test_one_neighbour_is_enough_to_see_a_stalled_runtime(autojump_clock):
    async with swarm() as it:
        one, other = await it.start_all(2)
        other.ready = trio.Event()
        await one.publish(1)
        await until(lambda: len(other.received) == 2)  # it has taken it, and does not answer
        assert other.service.queues()["updates"] == 1
        other.ready.set()
        await until(lambda: other.service.queues() == EMPTY)


async def test_a_slow_link_shows_as_pulls_here_and_serving_there(autojump_clock):
    async with swarm() as it:
        one, other = await it.start_all(2)
        it.network.set_link(one.peer, other.peer, LinkQuality(latency_s=0.25))
        await one.publish(1, bytes(3 * CHUNK_BYTES))
        await until(lambda: other.service.queues()["pulls"] == 1)
        assert one.service.queues()["serving"] == 1
        await until(lambda: other.follows(one))
        await until(lambda: one.service.queues()["serving"] == 0)
        assert other.service.queues()["pulls"] == 0
