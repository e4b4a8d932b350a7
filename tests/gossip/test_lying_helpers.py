"""Neighbours that help with another's payload, and do not keep to the rules; and those that must not help."""

import random

import pytest
import trio
from gossip_liars import Liar, join
from gossip_swarm import FakeRuntime, Swarm, all_follow, swarm, until

from gossip.blobs.blob import blob_manifest_of
from gossip.core.errors import Reason
from gossip.core.limits import CHUNK_BYTES, MAX_STREAMS_PER_PEER
from gossip.core.messages import ChunkRequest, ManifestRequest, Request, encode_answer

pytestmark = pytest.mark.slow

PAYLOAD = random.Random(5).randbytes(6 * CHUNK_BYTES)
UP = 256 * 1024.0


async def slow_author(it: Swarm, others: int) -> tuple[FakeRuntime, list[FakeRuntime]]:
    author = await it.start(1, up_bytes_per_s=UP)
    nodes = [await it.start(number, peers=(author.address,)) for number in range(2, others + 2)]
    for node in (author, *nodes):
        await node.begin()
    await until(lambda: all(len(node.service.neighbours()) == others for node in it.nodes) and all_follow(it.nodes))
    return author, nodes


def claims_to_have_it(request: Request) -> bytes | None:
    """Serves the manifest and, in place of chunks, zeros."""
    if isinstance(request, ManifestRequest):
        return encode_answer(blob_manifest_of(PAYLOAD).encode(), b"")
    return encode_answer(bytes(CHUNK_BYTES)) if isinstance(request, ChunkRequest) else None


def chunks_asked(liar: Liar) -> int:
    return sum(isinstance(request, ChunkRequest) for request in liar.asked)


async def test_a_helper_that_lies_costs_one_chunk_and_is_charged(autojump_clock):
    async with swarm() as it, trio.open_nursery() as nursery:
        author, (one,) = await slow_author(it, 1)
        liar = await join(it, nursery, it.nodes, answer=claims_to_have_it)
        await author.publish(1, PAYLOAD)
        await until(lambda: one.follows(author))
        assert chunks_asked(liar) == 1
        assert one.service.stats.rejected == {(liar.peer, Reason.DIGEST_MISMATCH): 1}
        assert one.service.stats.payload_bytes_received == len(PAYLOAD)
        nursery.cancel_scope.cancel()


@pytest.mark.thorough
async def test_a_helper_that_is_banned_is_asked_nothing(autojump_clock):
    async with swarm() as it, trio.open_nursery() as nursery:
        author, (one,) = await slow_author(it, 1)
        liar = await join(it, nursery, it.nodes, answer=claims_to_have_it)
        for round_ in range(1, 6):
            await author.publish(round_, PAYLOAD)
            await until(lambda: one.follows(author))
        assert one.told("banned")
        assert chunks_asked(liar) == 4, "points decay; a fifth round asked nothing"
        nursery.cancel_scope.cancel()


async def test_in_its_quiet_hours_nobody_helps(autojump_clock):
    async with swarm() as it, trio.open_nursery() as nursery:
        author, nodes = await slow_author(it, 3)
        quiet = await it.start(9, peers=(author.address,), quiet_hours=("12:00-13:00",))
        await quiet.begin()
        await until(lambda: all(quiet.peer in node.service.neighbours() for node in (author, *nodes)))
        await author.publish(1, PAYLOAD)
        await until(lambda: all(node.follows(author) for node in nodes))
        assert quiet.service.stats.payload_bytes_sent == quiet.service.stats.payload_bytes_received == 0
        assert sum(node.service.stats.payload_bytes_sent for node in nodes) > len(PAYLOAD), "the others did"
        nursery.cancel_scope.cancel()


@pytest.mark.thorough
async def test_many_slow_authors_at_once_open_no_more_streams_than_are_served(autojump_clock):
    """Each of many blobs is helped with; a stream too many would be charged, and ban honest nodes."""
    async with swarm() as it:
        slow = [await it.start(1, up_bytes_per_s=UP)]
        slow += [await it.start(number, peers=(slow[0].address,), up_bytes_per_s=UP) for number in range(2, 6)]
        quick = [await it.start(number, peers=(slow[0].address,)) for number in range(6, 9)]
        for node in it.nodes:
            await node.begin()
        await until(lambda: all(len(node.service.neighbours()) == 7 for node in it.nodes) and all_follow(it.nodes))
        most = 0
        for number, node in enumerate(slow):
            await node.publish(1, PAYLOAD[:-1] + bytes([number]))

        def done() -> bool:
            nonlocal most
            most = max(most, *(max(node.service._server._streams.values(), default=0) for node in it.nodes))
            return all_follow(it.nodes)

        await until(done, timeout_s=1000)
        assert most < MAX_STREAMS_PER_PEER
        assert not any(node.service.stats.rejected for node in it.nodes)
        assert sum(node.service.stats.payload_bytes_sent for node in quick) > 5 * len(PAYLOAD)
