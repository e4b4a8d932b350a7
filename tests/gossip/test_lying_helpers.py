"""Neighbours that help with another's payload, and do not keep to the rules; and those that must not help."""

import random
from typing import Any

import pytest
import trio
from gossip_liars import Liar, join
from gossip_swarm import FakeRuntime, Swarm, all_follow, swarm, until

from gossip.blobs.blob import blob_manifest_of
from gossip.blobs.blob_fetch_task import WAITED_S
from gossip.blobs.multi_source_task import OTHERS_S
from gossip.core.errors import Reason, RemoteError
from gossip.core.ids import Digest
from gossip.core.limits import CHUNK_BYTES, MAX_STREAMS_PER_PEER
from gossip.core.messages import ChunkRequest, ManifestRequest, Request, encode_answer, parse_request
from gossip.transport.base import TransportError
from gossip.transport.memory.link_quality import LinkQuality

pytestmark = pytest.mark.slow

PAYLOAD = random.Random(5).randbytes(6 * CHUNK_BYTES)
UP = 256 * 1024.0


async def slow_author(it: Swarm, others: int, **changes: object) -> tuple[FakeRuntime, list[FakeRuntime]]:
    author = await it.start(1, up_bytes_per_s=UP)
    nodes = [await it.start(number, peers=(author.address,), **changes) for number in range(2, others + 2)]
    for node in (author, *nodes):
        await node.begin()
    await until(lambda: all(len(node.service.neighbours()) == others for node in it.nodes) and all_follow(it.nodes))
    return author, nodes


def claims_to_have_it(request: Request) -> bytes | None:
    """Serves the manifest and, in place of chunks, zeros."""
    if isinstance(request, ManifestRequest):
        return encode_answer(blob_manifest_of(PAYLOAD).encode(), b"")
    return encode_answer(bytes(CHUNK_BYTES)) if isinstance(request, ChunkRequest) else None


def manifest(request: Request, chunks: int = 6) -> bytes | None:
    """Serves the manifest, and no chunk."""
    if isinstance(request, ManifestRequest):
        return encode_answer(blob_manifest_of(PAYLOAD[: chunks * CHUNK_BYTES]).encode(), b"")
    return None


def has_it(request: Request) -> bytes | None:
    """Serves all of it."""
    if isinstance(request, ChunkRequest):
        return encode_answer(PAYLOAD[request.index * CHUNK_BYTES :][:CHUNK_BYTES])
    return manifest(request)


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


def breaks_once(node: FakeRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first stream over which the node serves a chunk of its own breaks."""
    serves, broken = node.service._server._own_chunk, False

    def own_chunk(talk: Any, address: Digest, index: int) -> bytes | memoryview:
        nonlocal broken
        if not broken:
            broken = True
            raise TransportError("the stream broke")
        return serves(talk, address, index)

    monkeypatch.setattr(node.service._server, "_own_chunk", own_chunk)


def puts_off(liar: Liar, monkeypatch: pytest.MonkeyPatch, seconds: float = WAITED_S + 0.1) -> None:
    """The liar answers each request for a chunk so late. A refusal then says that it waits for the chunk itself."""
    reply = liar._reply

    async def late(raw: bytes) -> bytes:
        if isinstance(parse_request(raw), ChunkRequest):
            await trio.sleep(seconds)
        return await reply(raw)

    monkeypatch.setattr(liar, "_reply", late)


async def test_a_helper_that_trickles_does_not_make_a_pull_longer_than_from_the_author_alone(autojump_clock):
    """Its share was left to it: half of the chunks, at a fifth of the author's pace."""
    async with swarm() as it, trio.open_nursery() as nursery:
        author, (one,) = await slow_author(it, 1)
        trickler = await join(it, nursery, it.nodes, answer=has_it)
        it.network.set_link(trickler.peer, one.peer, LinkQuality(bytes_per_s=UP / 5))
        began = trio.current_time()
        await author.publish(1, PAYLOAD)
        await until(lambda: one.follows(author), timeout_s=200)
        assert chunks_asked(trickler)
        assert trio.current_time() - began <= len(PAYLOAD) / UP + 2
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(("chunks", "fails"), [(1, True), (6, True), (6, False)])
async def test_a_helper_that_puts_off_for_ever_does_not_keep_us_from_the_author(
    autojump_clock, monkeypatch: pytest.MonkeyPatch, chunks: int, fails: bool
):
    """The author is slow, and where it has failed once, the pull lasts as long as anybody helps with it."""

    async with swarm() as it, trio.open_nursery() as nursery:
        author, (one,) = await slow_author(it, 1)
        liar = await join(it, nursery, it.nodes, answer=lambda request: manifest(request, chunks))
        puts_off(liar, monkeypatch)
        if fails:
            breaks_once(author, monkeypatch)
        await author.publish(1, PAYLOAD[: chunks * CHUNK_BYTES])
        await until(lambda: one.follows(author), timeout_s=200)
        assert chunks_asked(liar)
        assert one.service.stats.rejected == {}, "it may have been true"
        nursery.cancel_scope.cancel()


async def test_of_two_helpers_that_put_off_the_second_does_not_take_over_from_the_first(
    autojump_clock, monkeypatch: pytest.MonkeyPatch
):
    """It has brought five of six chunks, and waits for the sixth, which the first one was asked for."""

    def has_five(request: Request) -> bytes | None:
        return has_it(request) if chunks_asked(second) <= 5 else manifest(request)

    async with swarm() as it, trio.open_nursery() as nursery:
        author, (one,) = await slow_author(it, 1)
        first = await join(it, nursery, it.nodes, answer=manifest)
        second = await join(it, nursery, it.nodes, number=67, answer=has_five)
        puts_off(first, monkeypatch)
        puts_off(second, monkeypatch, 9.5)  # 47.5 s for five: its stream is not idle for so long that it is closed
        breaks_once(author, monkeypatch)
        await author.publish(1, PAYLOAD)
        await until(lambda: one.follows(author), timeout_s=200)
        assert chunks_asked(second) >= 5
        nursery.cancel_scope.cancel()


async def test_what_the_author_has_refused_is_pulled_from_a_slow_helper_for_as_long_as_it_comes(
    autojump_clock, monkeypatch: pytest.MonkeyPatch
):
    def refuses(talk: Any, address: Digest, index: int) -> bytes | memoryview:
        raise RemoteError(Reason.UNAVAILABLE, "gone")

    async with swarm() as it, trio.open_nursery() as nursery:
        author, (one,) = await slow_author(it, 1, request_timeout_s=OTHERS_S)
        helper = await join(it, nursery, it.nodes, answer=has_it)
        puts_off(helper, monkeypatch, 0.7 * OTHERS_S)
        monkeypatch.setattr(author.service._server, "_own_chunk", refuses)
        await author.publish(1, PAYLOAD)
        await until(lambda: one.follows(author), timeout_s=5 * OTHERS_S)
        assert chunks_asked(helper) == 6, "none was cut off"
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
