"""One payload from many hands: a slow uplink sends it about once, and what a dead author sent is put together."""

import random

import pytest
import trio
from gossip_swarm import FakeRuntime, Swarm, all_follow, swarm, until

from gossip.core.errors import Reason
from gossip.core.limits import CHUNK_BYTES
from gossip.transport.memory.network import LinkQuality

pytestmark = pytest.mark.slow

SLOW_UP = 256 * 1024.0
FAST_UP = 20 * SLOW_UP


def payload_of(chunks: int) -> bytes:
    return random.Random(chunks).randbytes(chunks * CHUNK_BYTES - 5)


async def slow_and_others(it: Swarm, others: int) -> tuple[FakeRuntime, list[FakeRuntime]]:
    """A full mesh in which the first has a slow uplink."""
    first = await it.start(1, up_bytes_per_s=SLOW_UP)
    rest = [await it.start(number, peers=(first.address,), up_bytes_per_s=FAST_UP) for number in range(2, others + 2)]
    for node in (first, *rest):
        await node.begin()
    await until(lambda: all(len(node.service.neighbours()) == others for node in it.nodes) and all_follow(it.nodes))
    return first, rest


async def seconds_until_all_have(author: FakeRuntime, others: list[FakeRuntime]) -> float:
    began = trio.current_time()
    await until(lambda: all(other.follows(author) for other in others), timeout_s=1000)
    return trio.current_time() - began


def sent(nodes: list[FakeRuntime]) -> int:
    return sum(node.service.stats.payload_bytes_sent for node in nodes)


def received(nodes: list[FakeRuntime]) -> int:
    return sum(node.service.stats.payload_bytes_received for node in nodes)


@pytest.mark.thorough
async def test_a_slow_uplink_sends_its_payload_about_once(autojump_clock):
    payload = payload_of(16)
    async with swarm() as it:
        author, others = await slow_and_others(it, 7)
        await author.publish(1, payload)
        seconds = await seconds_until_all_have(author, others)
        assert seconds < 1.2 * len(payload) / SLOW_UP, "one after another it would be seven times as long"
        assert author.service.stats.payload_bytes_sent <= 1.1 * len(payload)
        assert received(others) == 7 * len(payload)
        assert sent(it.nodes) <= 1.05 * 7 * len(payload)
        assert not any(node.service.stats.rejected for node in it.nodes)
        speeds = [other.service.link_speeds()[author.peer].received for other in others]
        assert all(speed is not None and speed < SLOW_UP / 4 for speed in speeds), "of what the link itself carried"
        speeds = [author.service.link_speeds()[other.peer].sent for other in others]
        assert all(speed is not None and speed < SLOW_UP / 4 for speed in speeds)


async def test_who_leaves_does_not_wait_for_what_its_neighbours_had_of_others(autojump_clock):
    async with swarm() as it:
        author, others = await slow_and_others(it, 3)
        await author.publish(1, payload_of(6))
        await seconds_until_all_have(author, others)
        began = trio.current_time()
        await author.service.leave(timeout_s=100.0)
        assert trio.current_time() < began + 5.0


@pytest.mark.thorough
async def test_where_nobody_is_slow_nobody_else_is_asked(autojump_clock):
    payload = payload_of(5)
    async with swarm() as it:
        nodes = await it.start_all(8)
        for node in nodes:
            await node.publish(1, payload[:-1] + node.peer[-1:].encode())
        await until(lambda: all_follow(nodes))
        assert {node.service.stats.payload_bytes_sent for node in nodes} == {7 * len(payload)}


@pytest.mark.thorough
async def test_where_all_are_alike_no_more_is_sent_than_by_the_authors_alone(autojump_clock):
    payload = payload_of(5)
    async with swarm() as it:
        nodes = await it.start_all(8, up_bytes_per_s=4 * SLOW_UP)
        began = trio.current_time()
        for node in nodes:
            await node.publish(1, payload[:-8] + node.peer[-8:].encode())
        await until(lambda: all_follow(nodes), timeout_s=500)
        assert sent(nodes) <= 1.05 * 56 * len(payload)
        assert trio.current_time() - began < 1.1 * 7 * len(payload) / (4 * SLOW_UP)
        assert not any(node.service.stats.rejected for node in nodes)


async def test_two_halves_that_a_dead_author_sent_are_put_together(autojump_clock):
    payload = payload_of(8)
    async with swarm() as it:
        author, (one, other) = await slow_and_others(it, 2)
        it.network.set_link(one.peer, other.peer, LinkQuality(bytes_per_s=20_000.0))
        await author.publish(1, payload)
        await trio.sleep(len(payload) / SLOW_UP + 2.0)  # all of it is out, half to either
        assert received([one, other]) < 1.3 * len(payload)
        it.network.stall(author.peer)
        it.network.set_link(one.peer, other.peer, LinkQuality())
        await seconds_until_all_have(author, [one, other])
        assert set(one.service.stats.rejected) <= {(author.peer, Reason.TIMEOUT)}


async def test_a_cut_pull_goes_on_where_it_was(autojump_clock):
    payload = payload_of(8)
    async with swarm() as it:
        author, (one,) = await slow_and_others(it, 1)
        await author.publish(1, payload)
        for _ in range(3):
            await trio.sleep(9.0)
            it.network.cut(author.peer, one.peer)
            await until(lambda: not one.service.neighbours())
            it.network.heal()
            await until(lambda: bool(one.service.neighbours()))
        await seconds_until_all_have(author, [one])
        assert received([one]) == len(payload), "each chunk was taken once"
        assert one.received[-1].payload == payload


async def test_a_cut_snapshot_goes_on_where_it_was(autojump_clock):
    payload = payload_of(8)
    async with swarm() as it:
        author = await it.start(1, up_bytes_per_s=SLOW_UP)
        await author.begin(snapshot=payload)
        one = await it.start(2, peers=(author.address,))
        await one.begin()
        await until(lambda: one.service.stats.snapshot_bytes_received > 2 * CHUNK_BYTES)
        it.network.cut(author.peer, one.peer)
        await until(lambda: not one.service.neighbours())
        it.network.heal()
        await seconds_until_all_have(author, [one])
        assert one.service.stats.snapshot_bytes_received == len(payload)


async def test_a_payload_that_is_here_waits_for_no_answer_of_a_silent_helper(autojump_clock):
    payload = payload_of(2)
    async with swarm() as it:
        author, others = await slow_and_others(it, 2)
        it.network.stall(others[1].peer)
        await author.publish(1, payload)
        seconds = await seconds_until_all_have(author, others[:1])
        assert seconds < 1.1 * len(payload) / SLOW_UP
        assert not others[0].service.stats.rejected


async def test_a_helper_that_falls_silent_holds_nothing_up(autojump_clock):
    payload = payload_of(12)
    async with swarm() as it:
        author, others = await slow_and_others(it, 4)
        await author.publish(1, payload)
        await trio.sleep(0.4 * len(payload) / SLOW_UP)
        it.network.stall(others[-1].peer)
        seconds = await seconds_until_all_have(author, others[:-1])
        assert seconds < 1.2 * len(payload) / SLOW_UP, "what it had under way is asked for elsewhere"
