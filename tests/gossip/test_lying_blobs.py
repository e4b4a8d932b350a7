"""Payloads that are not what was announced: refused, charged to who served them, and harmful to nobody else."""

from collections.abc import Callable

import pytest
import trio
from gossip_liars import Liar, banned, counted, join, life_goes_on, refused
from gossip_samples import link, sealed
from gossip_swarm import identity, swarm, until

from gossip.blobs.blob import blob_manifest_of
from gossip.core.errors import Reason
from gossip.core.limits import MIB
from gossip.core.messages import ChunkRequest, HeadersRequest, ManifestRequest, Request, SnapshotRequest, encode_answer
from gossip.core.statements import UpdateHeader, UpdateHeaderBody, parse_update_header, update_header_statement
from gossip.transport.base import Stream


def serving(data: bytes, lie: Callable[[Request], bytes | None]) -> Callable[[Request], bytes | None]:
    """Serves `data` as every blob, unless `lie` has something else to say."""
    manifest = blob_manifest_of(data)

    def answer(request: Request) -> bytes | None:
        told = lie(request)
        if told is not None:
            return told
        if isinstance(request, ManifestRequest):
            return encode_answer(manifest.encode(), data if len(manifest.chunks) == 1 else b"")
        if isinstance(request, ChunkRequest):
            return encode_answer(data[request.index * MIB : (request.index + 1) * MIB])
        return None

    return answer


def published(data: bytes, size: int | None = None) -> list[UpdateHeader]:
    """A genesis of the liar's, and a delta whose blob is `data`."""
    key = identity(66)
    base = link(by=key)
    body = UpdateHeaderBody(round=1, kind="delta", codec="none", size=len(data) if size is None else size)
    address = blob_manifest_of(data).address
    statement = update_header_statement(epoch=1, seq=1, prev=base.digest, address=address, body=body)
    return [base, parse_update_header(sealed(statement, key))]


LIES: dict[str, tuple[Callable[[Request], bytes | None], Reason]] = {
    "another manifest": (
        lambda request: (
            encode_answer(blob_manifest_of(b"else").encode(), b"else") if isinstance(request, ManifestRequest) else None
        ),
        Reason.DIGEST_MISMATCH,
    ),
    "a wrong chunk": (
        lambda request: encode_answer(bytes(MIB)) if isinstance(request, ChunkRequest) and request.index == 1 else None,
        Reason.DIGEST_MISMATCH,
    ),
    "a short chunk": (
        lambda request: encode_answer(b"short") if isinstance(request, ChunkRequest) else None,
        Reason.DIGEST_MISMATCH,
    ),
    "a long chunk": (
        lambda request: encode_answer(bytes(MIB + 1)) if isinstance(request, ChunkRequest) else None,
        Reason.OVERSIZE,
    ),
    "a huge frame": (
        lambda request: bytes(3 * MIB) if isinstance(request, ManifestRequest) else None,
        Reason.OVERSIZE,
    ),
    "no msgpack": (
        lambda request: b"\xc1" if isinstance(request, ManifestRequest) else None,
        Reason.MALFORMED,
    ),
}


@pytest.mark.parametrize("lie", LIES)
async def test_bad_blobs_are_refused_and_ban_in_the_end(autojump_clock, lie):
    told, reason = LIES[lie]
    data = b"0123456789abcdef" * (2 * MIB // 16) + b"rest"
    links = published(data)
    answer = serving(data, told)

    def replies(request: Request) -> bytes | None:
        if isinstance(request, HeadersRequest):
            return encode_answer([each.raw for each in links])
        if isinstance(request, SnapshotRequest):
            return refused()
        return answer(request)

    async with swarm() as it, trio.open_nursery() as nursery:
        nodes = await it.start_all(2)
        liar = await join(it, nursery, nodes, answer=replies)
        for each in links:
            await liar.transport.publish(each.raw)
        await until(lambda: banned(nodes, liar), timeout_s=300)
        assert counted(nodes, liar) == [{reason}] * 2
        assert [update.seq for update in nodes[0].received if update.peer == liar.peer] == [0]
        await life_goes_on(nodes)
        nursery.cancel_scope.cancel()


async def test_a_blob_larger_than_was_announced_is_not_fetched(autojump_clock):
    data = bytes(3 * MIB)
    links = published(data, size=100)
    async with swarm() as it, trio.open_nursery() as nursery:
        nodes = await it.start_all(2)
        liar = await join(it, nursery, nodes, answer=serving(data, lambda request: None))
        for each in links:
            await liar.transport.publish(each.raw)
        await until(lambda: all(Reason.OVERSIZE in reasons for reasons in counted(nodes, liar)))
        assert not any(isinstance(request, ChunkRequest) for request in liar.asked)
        nursery.cancel_scope.cancel()


async def test_a_liar_that_never_answers_costs_itself_only(autojump_clock):
    class Silent(Liar):
        async def handle_stream(self, protocol: str, stream: Stream) -> None:
            await trio.sleep_forever()

    async with swarm() as it, trio.open_nursery() as nursery:
        nodes = await it.start_all(3)
        key = identity(66)
        liar = Silent(key, it.network.attach(key.peer_id))
        await nursery.start(lambda *, task_status: liar.transport.run(liar, task_status=task_status))
        for node in nodes:
            await liar.greet(node)
        for each in published(b"data"):
            await liar.transport.publish(each.raw)
        await life_goes_on(nodes)
        await until(lambda: all(Reason.TIMEOUT in reasons for reasons in counted(nodes, liar)))
        nursery.cancel_scope.cancel()


@pytest.mark.slow
async def test_updates_that_the_runtime_refuses_ban_after_a_few(autojump_clock):
    async with swarm() as it:
        nodes = await it.start_all(4)
        liar = nodes[3]
        for node in nodes[:3]:
            node.verdict = lambda update: Reason.NONFINITE if update.peer == liar.peer else None
        for round_ in range(1, 60):
            await liar.publish(round_)
            await trio.sleep(5)
        for node in nodes[:3]:
            assert liar.peer in {event.peer for event in node.told("banned")}
            assert liar.peer not in node.service.neighbours()
            assert 3 <= node.service.stats.rejected[liar.peer, Reason.NONFINITE] <= 5
        await life_goes_on(nodes[:3])


async def test_a_refused_update_is_untracked_until_a_snapshot(autojump_clock):
    async with swarm() as it:
        one, other = await it.start_all(2)
        other.verdict = lambda update: Reason.NONFINITE if update.round == 1 and update.kind == "delta" else None
        await one.publish(1)
        await until(lambda: bool(other.told("rejected")))
        assert not other.service.neighbours()[one.peer].tracked
        assert other.service.neighbours()[one.peer].score > 0
        view = await other.service.close_round(1, at_most_s=1.0)
        assert view.staleness == {}
        await one.publish(2)
        await until(lambda: other.follows(one))
        assert other.received[-1].kind == "snapshot"
