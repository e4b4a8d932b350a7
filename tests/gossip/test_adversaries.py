"""Liars among honest nodes: each is refused, counted by reason, charged, at last banned, and harms nobody else."""

import pytest
import trio
from gossip_liars import Liar, banned, counted, join, life_goes_on
from gossip_samples import chain, link, offer
from gossip_swarm import identity, play, swarm, until

from gossip.core.digests import digest_of
from gossip.core.errors import Reason, RemoteError
from gossip.core.limits import MAX_STREAMS_PER_PEER, STREAM_PROTOCOL
from gossip.core.messages import Request, SnapshotRequest, encode_answer
from gossip.transport.base import TransportError


async def test_a_liar_with_forged_announcements_is_banned(autojump_clock):
    async with swarm() as it, trio.open_nursery() as nursery:
        nodes = await it.start_all(3)
        liar = await join(it, nursery, nodes)
        honest = link(by=identity(1), epoch=999).raw
        for n in range(4):
            await liar.transport.publish(honest[:-1] + bytes([n]))
        await until(lambda: banned(nodes, liar))
        assert counted(nodes, liar) == [{Reason.FORGED}] * 3
        await until(lambda: not any(liar.peer in node.transport.peers for node in nodes))
        await life_goes_on(nodes)
        for node in nodes:
            with pytest.raises((TransportError, RemoteError)):
                await liar.greet(node)
        nursery.cancel_scope.cancel()


@pytest.mark.slow
async def test_replays_are_counted_and_honest_nodes_that_pass_them_on_are_not_charged(autojump_clock):
    async with swarm() as it, trio.open_nursery() as nursery:
        nodes = await it.start_all(3)
        old = [node.service._engine.publisher.newest.raw for node in nodes]
        liar = await join(it, nursery, nodes)
        await play(nodes, range(1, 31))
        for raw in old * 3:
            await liar.transport.publish(raw)
        older = [link(by=identity(n), epoch=5).raw for n in (1, 2, 3)]
        for raw in older:
            await liar.transport.publish(raw)
        await until(lambda: all(Reason.REPLAYED in reasons for reasons in counted(nodes, liar)))
        assert all(node.service._engine.peer_scores.scores.points(liar.peer, 0.0) == 0 for node in nodes)
        views = await play(nodes, range(31, 33))
        assert {view.closed_by for row in views for view in row} == {"quorum"}
        nursery.cancel_scope.cancel()


async def test_an_equivocator_is_banned_by_all_with_the_proof(autojump_clock):
    async with swarm() as it, trio.open_nursery() as nursery:
        nodes = await it.start_all(3)
        liar = await join(it, nursery, nodes)
        key = liar.identity
        one, other = chain(2, by=key)[1], chain(2, by=key, content=b"another")[1]
        await liar.transport.publish(one.raw)
        await liar.transport.publish(other.raw)
        await until(lambda: banned(nodes, liar))
        assert all(set(node.service.proofs()[liar.peer]) == {one.raw, other.raw} for node in nodes)
        assert all(node.told("equivocation")[0].peer == liar.peer for node in nodes)
        await life_goes_on(nodes)
        nursery.cancel_scope.cancel()


async def test_two_stories_to_two_neighbours_come_out(autojump_clock):
    """Each hears one history in its hello; the broadcast of either reaches both."""
    async with swarm() as it, trio.open_nursery() as nursery:
        nodes = await it.start_all(2)
        key = identity(66)
        one, other = chain(2, by=key)[1], chain(2, by=key, content=b"another")[1]
        liar = Liar(key, it.network.attach(key.peer_id), link=one.raw)
        await nursery.start(lambda *, task_status: liar.transport.run(liar, task_status=task_status))
        await liar.greet(nodes[0])
        liar.link = other.raw
        await liar.greet(nodes[1])
        await liar.transport.publish(one.raw)
        await until(lambda: bool(nodes[1].told("equivocation")))
        nursery.cancel_scope.cancel()


async def test_a_liars_round_number_moves_nothing(autojump_clock):
    async with swarm() as it, trio.open_nursery() as nursery:
        nodes = await it.start_all(4)
        liar = await join(it, nursery, nodes)
        await liar.transport.publish(link(by=liar.identity, round=10**9).raw)
        await until(lambda: all(node.service.neighbours()[liar.peer].tracked for node in nodes))
        views = await play(nodes, range(1, 4))
        assert all(liar.peer not in view.staleness for row in views for view in row)
        assert [node.service.swarm_round() for node in nodes] == [3] * 4
        nursery.cancel_scope.cancel()


async def test_a_snapshot_that_contradicts_the_chain_is_proof(autojump_clock):
    key = identity(66)
    links = chain(30, by=key)
    bad = offer(links[20], by=key, digest=digest_of(b"another history"))

    def answer(request: Request) -> bytes | None:
        return encode_answer(bad.raw) if isinstance(request, SnapshotRequest) else None

    async with swarm() as it, trio.open_nursery() as nursery:
        nodes = await it.start_all(2)
        liar = await join(it, nursery, nodes, answer=answer)
        await liar.transport.publish(links[20].raw)
        await until(lambda: banned(nodes, liar))
        assert all(node.service.proofs()[liar.peer] == (links[20].raw, bad.raw) for node in nodes)
        nursery.cancel_scope.cancel()


async def test_bad_requests_are_charged_and_answered_with_a_reset(autojump_clock):
    async with swarm() as it, trio.open_nursery() as nursery:
        nodes = await it.start_all(2)
        liar = await join(it, nursery, nodes)
        for _ in range(4):
            stream = await liar.transport.open_stream(nodes[0].peer, STREAM_PROTOCOL)
            await stream.send_all((3).to_bytes(4, "big") + b"\xc1\xc1\xc1")
            with pytest.raises(TransportError):
                await stream.receive_some(10)
        assert counted(nodes, liar) == [{Reason.MALFORMED}, set()]
        assert banned(nodes[:1], liar)
        nursery.cancel_scope.cancel()


async def test_streams_of_one_peer_are_bounded(autojump_clock):
    async with swarm() as it, trio.open_nursery() as nursery:
        nodes = await it.start_all(2)
        liar = await join(it, nursery, nodes)
        streams = [
            await liar.transport.open_stream(nodes[0].peer, STREAM_PROTOCOL) for _ in range(MAX_STREAMS_PER_PEER + 2)
        ]
        await trio.sleep(1)
        assert nodes[0].service._server.serving <= MAX_STREAMS_PER_PEER + 1
        assert Reason.PROTOCOL in counted(nodes, liar)[0]
        for stream in streams:
            await stream.reset()
        nursery.cancel_scope.cancel()


async def test_a_snapshot_source_that_fails_is_our_warning_and_no_end(autojump_clock):
    async with swarm() as it:
        nodes = await it.start_all(2)
        nodes[0].marks = False
        for round_ in range(1, 21):
            await nodes[0].publish(round_)

        async def broken():
            raise ZeroDivisionError("a bug in the runtime")

        nodes[0].snapshot = broken
        late = await it.start(9, peers=(nodes[0].address,))
        await until(lambda: bool(nodes[0].told("warning")))
        assert "a bug in the runtime" in nodes[0].told("warning")[0].detail
        nodes[0].events.clear()
        del nodes[0].snapshot
        await until(lambda: late.follows(nodes[0]))
        nodes[0].events.clear()
