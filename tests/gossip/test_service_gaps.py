"""What a node missed, it gets: by links, by a snapshot, after a restart, a partition, a pause of its runtime."""

import pytest
import trio
import trio.lowlevel
from gossip_swarm import CONFIG, all_follow, play, seqs, swarm, until

from gossip.core.errors import Reason
from gossip.core.messages import Refused
from gossip.transport.memory.network import LinkQuality

DEAF = LinkQuality(loss=1.0)


@pytest.mark.slow
async def test_half_of_all_announcements_lost_and_still_all_delivered(autojump_clock):
    async with swarm() as it:
        nodes = await it.start_all(4)
        for one in nodes:
            for other in nodes:
                it.network.set_link(one.peer, other.peer, LinkQuality(loss=0.5))
        await play(nodes, range(1, 16))
        await until(lambda: all_follow(nodes))
        assert all(node.service.stats.snapshot_bytes_received == 0 for node in nodes)
        assert all(seqs(node, other) == list(range(16)) for node in nodes for other in nodes if other is not node)


async def test_a_short_gap_is_closed_by_links(autojump_clock):
    async with swarm() as it:
        one, other = await it.start_all(2)
        it.network.set_link(one.peer, other.peer, DEAF)
        for round_ in range(1, 6):
            await one.publish(round_)
        it.network.set_link(one.peer, other.peer, LinkQuality())
        await until(lambda: other.follows(one))
        assert seqs(other, one) == list(range(6))
        assert other.service.stats.snapshot_bytes_received == 0


async def test_a_long_gap_is_closed_by_a_snapshot(autojump_clock):
    async with swarm() as it:
        one, other = await it.start_all(2)
        it.network.set_link(one.peer, other.peer, DEAF)
        for round_ in range(1, 21):
            await one.publish(round_)
        it.network.set_link(one.peer, other.peer, LinkQuality())
        await until(lambda: other.follows(one))
        assert seqs(other, one) == [0, 20]
        assert other.received[-1].kind == "snapshot"
        assert other.received[-1].round == 20
        await one.publish(21)
        await until(lambda: other.follows(one))
        assert seqs(other, one) == [0, 20, 21]
        assert one.service.stats.snapshots_served == 1


async def test_without_broadcasts_heartbeats_bring_the_news(autojump_clock):
    async with swarm() as it:
        one, other = await it.start_all(2)
        it.network.set_link(one.peer, other.peer, DEAF)
        await one.publish(1)
        await until(lambda: other.follows(one), timeout_s=2 * CONFIG.heartbeat_s)


async def test_a_late_joiner_starts_from_everybodys_snapshot(autojump_clock):
    async with swarm() as it:
        nodes = await it.start_all(3)
        await play(nodes, range(1, 21))
        late = await it.start(9, peers=(nodes[0].address,))
        assert await late.service.wait_for_tracked(3, timeout_s=60) == 3
        assert late.service.swarm_round() == 20
        assert all(late.follows(node) for node in nodes)
        assert {update.kind for update in late.received} == {"snapshot"}
        await late.begin(round=20, snapshot=b"aggregate")
        await play([*nodes, late], range(21, 24))
        await until(lambda: all_follow([*nodes, late]))


async def test_a_neighbour_that_restarts_begins_a_new_epoch(autojump_clock):
    async with swarm() as it:
        nodes = await it.start_all(3)
        await play(nodes, range(1, 6))
        nodes[2].scope.cancel()
        await until(lambda: all(len(node.service.neighbours()) == 1 for node in nodes[:2]))
        again = await it.start(3, peers=(nodes[0].address,))
        await again.begin(epoch=2000, round=5, snapshot=b"from a checkpoint")
        alive = [*nodes[:2], again]
        await until(lambda: all_follow(alive))
        await play(alive, range(6, 9))
        await until(lambda: all_follow(alive))
        assert all(node.service.stats.rejected == {} for node in alive)


async def test_a_partition_splits_the_swarm_and_heals(autojump_clock):
    async with swarm() as it:
        nodes = await it.start_all(4)
        await play(nodes, range(1, 3))
        it.network.part([node.peer for node in nodes[:2]], [node.peer for node in nodes[2:]])
        await until(lambda: all(len(node.service.neighbours()) == 1 for node in nodes))
        views = await play(nodes, range(3, 6))
        assert {view.closed_by for row in views for view in row} == {"quorum"}
        it.network.heal()
        await until(lambda: all(len(node.service.neighbours()) == 3 for node in nodes))
        await until(lambda: all_follow(nodes))
        await play(nodes, range(6, 8))
        await until(lambda: all_follow(nodes))


async def test_a_runtime_that_is_busy_gets_one_update_of_a_peer_at_a_time(autojump_clock):
    async with swarm() as it:
        one, other = await it.start_all(2)
        other.ready = trio.Event()
        for round_ in range(1, 5):
            await one.publish(round_)
        await trio.sleep(30)
        assert seqs(other, one) == [0, 1]
        assert other.service.stats.payload_bytes_received == len(one.history[0])
        other.ready.set()
        await until(lambda: other.follows(one))


@pytest.mark.parametrize("reason", [Reason.FLOODED, Reason.UNAVAILABLE])
async def test_what_is_refused_for_now_is_asked_for_again_and_what_is_gone_replaced_by_a_snapshot(
    reason, autojump_clock, monkeypatch
):
    async with swarm() as it:
        one, other = await it.start_all(2)
        fetcher = other.service._followers._all[one.peer]._fetcher
        fetch, refused = fetcher.fetch, []

        async def refuse_once(work):
            if not refused:
                refused.append(work)
                raise Refused(reason, "not now")
            return await fetch(work)

        monkeypatch.setattr(fetcher, "fetch", refuse_once)
        await one.publish(1)
        await until(lambda: other.follows(one))
        assert refused
        kinds = [update.kind for update in other.received if update.seq]
        assert kinds == ["snapshot" if reason is Reason.UNAVAILABLE else "delta"]


@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize("reason", [Reason.NONFINITE, Reason.PROTOCOL])
async def test_who_leaves_before_the_verdict_is_charged_but_not_for_what_we_have_forgotten(
    reason, back, autojump_clock
):
    async with swarm() as it:
        one, other = await it.start_all(2)
        other.ready = trio.Event()
        other.verdict = lambda update: reason if update is other.received[1] else None
        await one.publish(1)
        await until(lambda: seqs(other, one) == [0, 1])
        it.network.cut(one.peer, other.peer)
        await until(lambda: not other.service.neighbours())
        if back:
            it.network.heal()
            await until(lambda: one.peer in other.service.neighbours())
        other.ready.set()
        await trio.sleep(0.01)
        charged = {} if reason is Reason.PROTOCOL else {(one.peer, reason): 1}
        assert other.service.stats.rejected == charged
        it.network.heal()
        await until(lambda: other.follows(one))
        assert other.service.neighbours()[one.peer].score == (0 if not charged else pytest.approx(34, rel=0.2))


async def test_a_verdict_on_an_update_of_before_a_reconnection_is_void(autojump_clock):
    async with swarm() as it:
        one, other = await it.start_all(2)
        other.ready = trio.Event()
        await one.publish(1)
        await until(lambda: seqs(other, one) == [0, 1])
        it.network.cut(one.peer, other.peer)
        await until(lambda: not other.service.neighbours())
        it.network.heal()
        await until(lambda: one.peer in other.service.neighbours())
        accepted = other.service.stats.updates_accepted
        other.service.accepted(other.received[-1])
        assert other.service.stats.updates_accepted == accepted
        other.ready.set()
        await until(lambda: other.follows(one) and other.service.neighbours()[one.peer].tracked)
