"""What a scrape of real nodes shows of the moment: who is reachable, how long pulls took, and what waits where."""

from functools import partial
from pathlib import Path

import pytest
import trio
import trio.testing
from scraped import Scraped, parsed, reachability_in
from sim_swarm import STEP_SECONDS, Member, swarm

from gossip.transport.memory.link_quality import LinkQuality
from node.metrics.live_metrics import QUEUES
from node.metrics.node_metrics import Metrics
from node.training.round_report import readings

ROUND_S = 5 * STEP_SECONDS


def scrape(member: Member) -> Scraped:
    metrics = Metrics()
    metrics.live.watch(partial(readings, member.node))
    return parsed(metrics.exposition().decode())


def reachability(member: Member) -> str:
    return reachability_in(scrape(member))


def depths(member: Member) -> dict[str, float]:
    found = scrape(member)["queue_depth"]
    assert tuple(found) == QUEUES
    return {queue: depth for queue, depth in found.items() if depth}


async def test_who_was_dialled_is_reachable_and_every_pull_is_timed(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async with swarm(tmp_path) as members:
        first = await members.start("first", wait_for=2)
        assert reachability(first) == "unknown"
        members.network._default = LinkQuality(latency_s=0.02)
        second = await members.start("second", wait_for=2)
        last = await members.start("last", wait_for=2)  # it knows both, and they hear of it when it dials
        await members.finished()
        assert [reachability(member) for member in (first, second, last)] == ["reached", "reached", "outbound"]
        for member in (first, second, last):
            seen, stats = scrape(member), member.node.service.stats
            blobs = seen["blob_seconds_count"][""]
            assert blobs == stats.updates_accepted - 2, "all but the two genesis links have a blob"
            assert blobs >= 2 * 7
            # A payload of 1 KiB comes with its manifest: one round trip. And nothing was refused or tried twice.
            assert abs(seen["blob_seconds_sum"][""] / blobs - 0.04) < 0.001
            buckets = seen["blob_seconds_bucket"]
            assert (buckets["0.03"], buckets["0.1"], buckets["+Inf"]) == (0, blobs, blobs)
            assert depths(member) == {}


@pytest.mark.thorough
async def test_a_stalled_consumer_shows_as_updates_that_wait(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async with swarm(tmp_path) as members:
        nodes = [await members.start(f"n{number}", wait_for=2, train={"rounds": 40}) for number in range(3)]
        stalled = nodes[0]
        await trio.sleep(5 * ROUND_S)
        async with stalled.node.strategy_lock:  # as a decoder that takes for ever
            await trio.sleep(8 * ROUND_S)
            # Its own round waits for the strategy, as the updates do: `announce` or `aggregate`, and `follow`.
            assert depths(stalled) == {"updates": 2, "strategy": 2, "closing": 1}
        await trio.sleep(8 * ROUND_S)
        assert depths(stalled).keys() <= {"closing"}
        await members.finished()
        assert depths(stalled) == {}


async def test_a_correction_waits_while_a_step_lasts(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    async with swarm(tmp_path) as members:
        alone = await members.start("alone", step_seconds=10.0)
        seen: list[dict[str, float]] = []
        with trio.move_on_after(120.0):
            while not seen or "corrections" not in seen[-1]:
                await trio.sleep(1.0)
                seen.append(depths(alone))
        assert seen[-1] == {"corrections": 1}, "left at the door by the closed round, taken up before the next step"
        await members.finished()
        assert depths(alone) == {}


@pytest.mark.thorough
async def test_rounds_that_close_late_show_as_closing(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    async with swarm(tmp_path) as members:
        settings = {"train": {"rounds": 30}, "network": {"min_deadline_s": 0.2}}
        one = await members.start("one", wait_for=1, **settings)
        other = await members.start("other", wait_for=1, **settings)
        await trio.sleep(4 * ROUND_S)

        async def share_closing() -> float:
            seen = []
            for _ in range(100):
                await trio.sleep(ROUND_S / 20)
                seen.append(depths(one).get("closing", 0))
            return sum(seen) / len(seen)

        assert await share_closing() < 0.2, "the neighbour's update is there at once"
        members.network.stall(other.transport.peer_id)
        assert await share_closing() > 0.6, "each round waits for its deadline"
        members.network.unstall(other.transport.peer_id)
        await members.finished()
        assert depths(one) == {}
