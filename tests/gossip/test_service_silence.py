"""Neighbours that die, stop or leave, and rounds that close without them."""

import pytest
import trio
import trio.lowlevel
from gossip_swarm import CONFIG, play, swarm, until

from gossip.core.api import RoundView
from gossip.transport.memory.network import LinkQuality


async def test_alone_there_is_nothing_to_wait_for(autojump_clock):
    async with swarm() as it:
        one = await it.start(1)
        await one.begin()
        await one.publish(1)
        view = await one.service.close_round(1, at_most_s=60)
        assert (view.closed_by, view.staleness, view.seconds) == ("alone", {}, 0.0)
        assert one.service.swarm_round() is None
        assert await one.service.wait_for_neighbours(1, timeout_s=5) == 0


async def test_a_dead_neighbour_costs_deadlines_and_then_nothing(autojump_clock):
    async with swarm() as it:
        nodes = await it.start_all(3, initial_deadline_s=2.0)
        await play(nodes, [1])
        it.network.stall(nodes[2].peer)
        alive = nodes[:2]
        views = [row[0] for row in await play(alive, range(2, 10))]
        assert [view.closed_by for view in views[:4]] == ["deadline"] * 4
        assert [view.closed_by for view in views[4:]] == ["quorum"] * 4
        assert all(view.seconds == pytest.approx(2.0) for view in views[:4])
        assert all(view.seconds < 0.1 for view in views[4:])


async def test_the_first_round_waits_for_the_neighbours_work_and_not_for_their_bases(autojump_clock):
    async with swarm() as it:
        nodes = await it.start_all(3)
        async with trio.open_nursery() as nursery:
            views: list[RoundView] = []

            async def close() -> None:
                views.append(await nodes[0].service.close_round(0, at_most_s=60))

            await nodes[0].publish(0)
            nursery.start_soon(close)
            await trio.sleep(1.0)
            assert views == [], "there are but the models with which all have begun"
            for node in nodes[1:]:
                await node.publish(0)
        assert (views[0].closed_by, set(views[0].staleness.values())) == ("quorum", {0})


async def test_the_learned_deadline_shrinks_to_what_rounds_take(autojump_clock):
    async with swarm() as it:
        nodes = await it.start_all(3)
        await play(nodes, range(1, 11))
        it.network.stall(nodes[2].peer)
        views = await play(nodes[:2], [11])
        assert views[0][0].closed_by == "deadline"
        assert views[0][0].seconds == pytest.approx(CONFIG.min_deadline_s)


async def test_the_callers_limit_is_kept(autojump_clock):
    async with swarm() as it:
        nodes = await it.start_all(2)
        view = await nodes[0].service.close_round(7, at_most_s=3.0)
        assert view.closed_by == "deadline"
        assert view.seconds == pytest.approx(3.0)
        assert view.staleness == {}


async def test_a_stopped_neighbour_is_dropped_and_comes_back(autojump_clock):
    async with swarm() as it:
        nodes = await it.start_all(3)
        it.network.stall(nodes[2].peer)
        await until(lambda: all(nodes[2].peer not in node.service.neighbours() for node in nodes[:2]))
        await play(nodes[:2], range(1, 15))
        it.network.unstall(nodes[2].peer)
        await until(lambda: all(len(node.service.neighbours()) == 2 for node in nodes))
        await until(lambda: all(nodes[2].follows(node) for node in nodes[:2]))


async def test_a_short_stop_loses_nobody(autojump_clock):
    async with swarm() as it:
        nodes = await it.start_all(3, initial_deadline_s=2.0)
        it.network.stall(nodes[2].peer)
        await play(nodes[:2], range(1, 3))
        await trio.sleep(max(0.0, 20.0 - trio.current_time()))
        it.network.unstall(nodes[2].peer)
        await until(lambda: all(nodes[2].follows(node) for node in nodes[:2]))
        assert not any(node.told("neighbour_lost") for node in nodes)


async def test_leaving_is_said_after_the_last_update_was_pulled(autojump_clock):
    async with swarm() as it:
        nodes = await it.start_all(3)
        it.network.set_link(nodes[0].peer, nodes[2].peer, LinkQuality(latency_s=0.5))
        payload = b"the last one" * 200_000
        await nodes[2].publish(1, payload)
        await nodes[2].service.leave(timeout_s=60)
        assert all(nodes[2].peer not in node.service.neighbours() for node in nodes[:2])
        assert all(node.told("neighbour_lost")[0].detail == "it left" for node in nodes[:2])
        nodes[2].scope.cancel()
        assert all(node.received[-1].payload == payload for node in nodes[:2])
        await trio.sleep(120)
        assert all(not node.told("dial_failed") for node in nodes[:2])


async def test_leaving_does_not_wait_for_the_dead(autojump_clock):
    async with swarm() as it:
        nodes = await it.start_all(3)
        it.network.stall(nodes[0].peer)
        await nodes[2].publish(1)
        started = trio.current_time()
        await nodes[2].service.leave(timeout_s=5.0)
        assert trio.current_time() - started <= 5.0
        assert nodes[2].peer not in nodes[1].service.neighbours()
