"""What is fetched of the neighbours: their updates, their models, or nothing but their announcements."""

from collections.abc import Mapping

import trio
from gossip_swarm import FakeRuntime, all_follow, play, seqs, swarm, until

from gossip.allreduce.allreduce import Group
from gossip.core.ids import PeerId
from gossip.engine import MODEL_AGE


def snapshots(nodes: list[FakeRuntime]) -> int:
    return sum(node.service.stats.snapshots_served for node in nodes)


async def test_nothing_is_fetched_and_rounds_go_by_what_is_announced(autojump_clock):
    async with swarm() as net:
        nodes = await net.start_all(4)
        for node in nodes:
            node.service.fetch("nothing")
        received = [len(node.received) for node in nodes]
        views = await play(nodes, range(1, 12))
        for view in (view for round_ in views for view in round_):
            assert view.closed_by == "quorum"
            assert set(view.staleness.values()) <= {0, 1}
            assert len(view.staleness) == 3
        assert [len(node.received) for node in nodes] == received
        assert sum(node.service.stats.payload_bytes_sent for node in nodes) == 0
        assert snapshots(nodes) == 0
        for node in nodes:
            assert node.service.members(11) == sorted(node.service.neighbours())
            assert not any(status.tracked for status in node.service.neighbours().values())
            assert {status.staleness for status in node.service.neighbours().values()} <= {0, 1}


async def test_one_of_whom_nothing_is_fetched_may_leave_at_once(autojump_clock):
    async with swarm() as net:
        nodes = await net.start_all(2)
        for node in nodes:
            node.service.fetch("nothing")
        await play(nodes, [1])
        before = trio.current_time()
        await nodes[0].service.leave(20.0)
        assert trio.current_time() - before < 5.0, "nobody will ever take the newest update"


async def test_who_leaves_waits_for_its_reduced_part_to_be_taken(autojump_clock):
    """The other one is cut off as soon as its own part is there: only when it has pulled ours may we go."""
    async with swarm() as net:
        other, owner = await net.start_all(2)  # of one chunk the last member is the owner
        group = Group(members=(other.peer, owner.peer), round=1, size=1000)
        results, left = {}, []

        def reduce(vectors: Mapping[PeerId, bytes | memoryview]) -> bytes:
            net.network.stall(other.peer)
            return b"r" * 1000

        async def exchange(node: FakeRuntime, data: bytes) -> None:
            results[node.peer] = await node.service.exchange(group, data, reduce, gather_s=20.0, timeout_s=20.0)

        async def leave() -> None:
            await until(lambda: owner.service._allreducer._reduced is not None)
            await owner.service.leave(40.0)
            left.append(trio.current_time())

        for node in (owner, other):
            node.service.fetch("nothing")
        async with trio.open_nursery() as nursery:
            for node in (owner, other):
                nursery.start_soon(exchange, node, node.peer[:1].encode() * 1000)
            nursery.start_soon(leave)
            await trio.sleep(4.0)
            assert not left
            net.network.unstall(other.peer)
            resumed = trio.current_time()
        assert [part.data for part in results[other.peer]] == [b"r" * 1000]
        assert left[0] - resumed < 15.0, "and it does not wait any longer"


async def test_models_are_snapshots_and_no_updates(autojump_clock):
    async with swarm() as net:
        nodes = await net.start_all(3)
        for node in nodes:
            node.service.fetch("nothing")
        await play(nodes, range(1, 9))
        newcomer = nodes[0]
        newcomer.received.clear()
        newcomer.service.fetch("models")
        assert await newcomer.service.wait_for_tracked(2, 30.0) == 2
        assert all(newcomer.follows(other) for other in nodes[1:])
        assert {update.kind for update in newcomer.received} == {"snapshot"}
        for round_ in range(9, 9 + 3 * MODEL_AGE):
            for other in nodes[1:]:
                await other.publish(round_)
            await trio.sleep(3.0)
            heads = {other.peer: other.service.head.seq for other in nodes[1:]}
            held = {update.peer: update.seq for update in newcomer.received}
            assert all(heads[peer] - held[peer] <= MODEL_AGE for peer in heads), "a new one when it is old"
        assert len(seqs(newcomer, nodes[1])) <= 5
        assert {update.kind for update in newcomer.received} == {"snapshot"}
        newcomer.service.fetch("nothing")
        newcomer.received.clear()
        await play(nodes, range(20, 24))
        assert not newcomer.received


async def test_a_base_is_a_model_too(autojump_clock):
    """And what was held when nothing is fetched any more is void: it is asked for again."""
    async with swarm() as net:
        nodes = await net.start_all(2)
        for node in nodes:
            node.service.fetch("nothing")
        await nodes[1].begin(epoch=2000, round=5, snapshot=b"a model")
        await until(lambda: nodes[0].service.neighbours()[nodes[1].peer].round == 5)
        for _ in range(2):
            nodes[0].received.clear()
            nodes[0].service.fetch("models")
            await until(lambda: bool(nodes[0].received))
            assert [update.kind for update in nodes[0].received] == ["snapshot"]
            assert nodes[0].follows(nodes[1])
            nodes[0].service.fetch("nothing")
        assert nodes[1].service.stats.snapshot_bytes_sent == 2 * len(b"a model")
        assert snapshots(nodes) == 0


async def test_who_turns_back_to_updates_follows_again(autojump_clock):
    async with swarm() as net:
        nodes = await net.start_all(3)
        nodes[0].service.fetch("nothing")
        await play(nodes, range(1, 8))
        nodes[0].service.fetch("updates")
        await until(lambda: all_follow(nodes))
        await play(nodes, range(8, 10))
        await until(lambda: all_follow(nodes))
