"""Real services over the in-memory network, under a virtual clock: the ordinary life of a swarm."""

import pytest
import trio
import trio.lowlevel
from gossip_swarm import CONFIG, RUN, all_follow, identity, play, seqs, swarm, until

from gossip.core.api import RunInfo
from gossip.core.config import MIN_HEARTBEAT_S
from gossip.core.digests import digest_of
from gossip.core.errors import LocalError, Reason
from gossip.core.ids import RunId
from gossip.core.limits import CHUNK_BYTES
from gossip.transport.memory.network import LinkQuality


async def test_every_update_is_heard_in_order_and_closes_its_round(autojump_clock):
    async with swarm() as it:
        nodes = await it.start_all(4)
        views = await play(nodes, range(1, 6))
        assert {view.closed_by for row in views for view in row} == {"quorum"}
        assert all(len(view.staleness) == 3 and view.neighbours == 3 for row in views for view in row)
        await until(lambda: all_follow(nodes))
        for node in nodes:
            assert [seqs(node, other) for other in nodes if other is not node] == [list(range(6))] * 3
            assert node.service.stats.updates_accepted == 18
            assert node.service.stats.rejected == {}
            assert node.service.stats.payload_bytes_received == 5 * 3 * len(f"{node.peer[-4:]}:1")
            assert node.service.swarm_round() == 5


async def test_a_closed_round_says_how_many_neighbours_each_has(autojump_clock):
    async with swarm() as it:
        first = await it.start(1)
        ends = [await it.start(number, peers=(first.address,)) for number in (2, 3)]
        await first.service.wait_for_neighbours(2, timeout_s=30)
        for node in (first, *ends):
            await node.begin()
        await trio.sleep(3 * MIN_HEARTBEAT_S)  # hellos say it anew
        views = await play([first, *ends], [1])
        for view in (view for row in views for view in row):
            assert view.degree == 2
            assert view.degrees.keys() == view.staleness.keys()
            assert set(view.degrees.values()) == {2}


async def test_who_knows_one_peer_gets_to_know_all(autojump_clock):
    async with swarm() as it:
        first = await it.start(1)
        rest = [await it.start(number, peers=(first.address,)) for number in (2, 3, 4)]
        for node in (first, *rest):
            assert await node.service.wait_for_neighbours(3, timeout_s=30) == 3
        assert rest[0].service.neighbours()[rest[2].peer].address == rest[2].address


async def test_a_bootstrap_peer_may_come_later(autojump_clock):
    async with swarm() as it:
        other = identity(2).peer_id
        early = await it.start(1, peers=(f"/memory/1/p2p/{other}",))
        await trio.sleep(300)
        assert early.told("dial_failed")[0].peer == other
        assert len(early.told("dial_failed")) == 1
        await it.start(2)
        assert await early.service.wait_for_neighbours(1, timeout_s=120) == 1


async def test_the_peers_file_may_be_written_later(autojump_clock, tmp_path):
    path = tmp_path / "peers"
    async with swarm() as it:
        one, other = await it.start(1), await it.start(2, peers_file=path)
        await trio.sleep(30)
        path.write_text(f"# a comment\nnonsense\n{one.address}\n")
        assert await other.service.wait_for_neighbours(1, timeout_s=5) == 1
        assert [event.detail for event in other.told("warning")] != []
        assert "nonsense" in other.told("warning")[0].detail


async def test_nonsense_in_the_config_is_the_users_mistake(autojump_clock):
    async with swarm() as it:
        with pytest.raises(LocalError, match="no peer's address"):
            await it.start(1, peers=("localhost:4001",))


@pytest.mark.parametrize(
    ("run", "reason"),
    [
        (RunInfo(run_id=RunId(b"x" * 16), genesis=RUN.genesis), Reason.WRONG_RUN),
        (RunInfo(run_id=RUN.run_id, genesis=digest_of(b"another seed")), Reason.WRONG_MODEL),
    ],
)
async def test_nodes_of_another_run_are_told_and_do_not_disturb(autojump_clock, run, reason):
    async with swarm() as it:
        nodes = await it.start_all(2)
        stranger = await it.start(9, peers=(nodes[0].address,), run=run)
        await stranger.begin()
        await until(lambda: bool(stranger.told("rejected")) and bool(nodes[0].told("rejected")))
        assert stranger.told("rejected")[0].reason is reason
        assert stranger.service.neighbours() == {}
        assert reason in nodes[0].service.stats.rejected_by_reason
        views = await play(nodes, range(1, 4))
        assert {view.closed_by for row in views for view in row} == {"quorum"}


async def test_payloads_of_many_chunks_cross_a_slow_link(autojump_clock):
    async with swarm() as it:
        nodes = await it.start_all(2)
        it.network.set_link(nodes[0].peer, nodes[1].peer, LinkQuality(latency_s=0.05))
        payload = bytes(range(256)) * (3 * CHUNK_BYTES // 256) + b"and a half"
        await nodes[0].publish(1, payload)
        await until(lambda: nodes[1].follows(nodes[0]))
        assert nodes[1].received[-1].payload == payload
        assert nodes[1].service.stats.payload_bytes_received == len(payload)
        assert nodes[0].service.stats.payload_bytes_sent == len(payload)


@pytest.mark.slow
async def test_two_hundred_rounds_grow_nothing(autojump_clock):
    async with swarm() as it:
        nodes = await it.start_all(3)

        def sizes(node):
            engine = node.service._engine
            return {
                "blobs": len(engine.publisher.blobs),
                "blob bytes": engine.publisher.blobs.bytes_held,
                "links": len(engine.publisher._links),
                "scores": len(engine.peer_scores.scores._records),
                "book": len(engine.peerstore),
                "neighbours": len(engine.neighbours),
                "pending": sum(len(peer.chain._pending) for peer in engine.neighbours.values()),
                "recent": sum(len(peer.chain._recent) for peer in engine.neighbours.values()),
                "streams": len(node.service._server._streams),
                "followers": len(node.service._followers),
                "tasks": len(node.service._nursery.child_tasks),
                "transport streams": sum(len(c.streams) for c in node.transport._connections.values()),
                "hellos": len(node.service._dialler._hellos),
            }

        payload = b"x" * 1000
        for round_ in range(1, 201):
            for node in nodes:
                node.history.clear()
                await node.publish(round_, payload)
            await nodes[0].service.close_round(round_, at_most_s=60)
            await trio.sleep(0.5)
            if round_ == 50:
                early = [sizes(node) for node in nodes]
        late = [sizes(node) for node in nodes]
        for before, after in zip(early, late, strict=True):
            assert all(after[name] <= before[name] * 1.1 + 1 for name in before), (before, after)
        assert late[0]["links"] == CONFIG.history
        assert late[0]["blobs"] <= CONFIG.history + 2
        assert len(nodes[0].service._engine._seen) <= 4096


@pytest.mark.slow
async def test_more_nodes_than_the_degree_still_all_get_in(autojump_clock):
    async with swarm() as it:
        first = await it.start(1, degree=3)
        nodes = [first] + [await it.start(n, peers=(first.address,), degree=3) for n in range(2, 11)]
        for node in nodes:
            await node.begin()
        await until(lambda: all(node.service.neighbours() for node in nodes), timeout_s=600)
        assert all(len(node.service.neighbours()) <= 3 for node in nodes)
        assert all(node.service.stats.rejected == {} for node in nodes)


@pytest.mark.parametrize("after_s", [0.0, 0.01, 0.5, 3.0])
async def test_a_service_can_be_cancelled_at_any_time(autojump_clock, after_s):
    async with swarm() as it:
        first = await it.start(1)
        await first.begin()
        other = await it.start(2, peers=(first.address,))
        await trio.sleep(after_s)
        other.scope.cancel()
        await until(lambda: not first.transport.peers)
        assert first.service.neighbours() == {}
        third = await it.start(3, peers=(first.address,))
        assert await third.service.wait_for_neighbours(1, timeout_s=30) == 1


async def test_an_address_in_use_is_one_plain_error(autojump_clock):
    async with swarm() as it:
        one = await it.start(1)
        with pytest.raises(LocalError, match="in use"):
            await one.service.run()


async def test_an_epoch_may_begin_before_the_network_runs(autojump_clock):
    async with swarm() as it:
        one = await it.start(1)
        await one.begin()
        other = it.make(2, peers=(one.address,))
        await other.begin()
        await it.launch(other)
        await until(lambda: one.follows(other) and other.follows(one))


@pytest.mark.slow
async def test_the_quickest_heartbeats_and_redials_are_within_what_neighbours_take(autojump_clock):
    """Who has places left asks its neighbours for addresses between heartbeats."""
    async with swarm() as it:
        nodes = await it.start_all(3, heartbeat_s=MIN_HEARTBEAT_S, redial_min_s=0.25, redial_max_s=0.5)
        await trio.sleep(120)
        assert [node.service.stats.rejected for node in nodes] == [{}, {}, {}]
