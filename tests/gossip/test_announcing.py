"""When a node tells of its newest link: at once, and again when it has not changed for a while."""

from itertools import pairwise

import trio
from gossip_swarm import swarm

REANNOUNCE_S, HEARTBEAT_S = 2.0, 10.0


async def test_with_short_rounds_nothing_is_announced_twice_and_the_last_link_again_and_again(autojump_clock):
    async with swarm() as it:
        node, _ = await it.start_all(2, reannounce_s=REANNOUNCE_S, heartbeat_s=HEARTBEAT_S)
        said: list[bytes] = []
        times: list[float] = []
        publish = node.transport.publish

        async def counted_publish(data: bytes) -> None:
            said.append(data)
            times.append(trio.current_time())
            await publish(data)

        node.transport.publish = counted_publish  # type: ignore[method-assign]
        for round_ in range(1, 21):
            await node.publish(round_)
            await trio.sleep(REANNOUNCE_S / 2)
        assert len(said) == len(set(said)) == 20
        await trio.sleep(6 * HEARTBEAT_S)
        assert len(set(said)) == 20
        gaps = [later - sooner for sooner, later in pairwise(times[19:])]
        wanted = [REANNOUNCE_S, 2 * REANNOUNCE_S, 4 * REANNOUNCE_S, *([HEARTBEAT_S] * (len(gaps) - 3))]
        assert len(gaps) >= 6
        assert all(0.75 * pause <= gap <= 1.26 * pause for pause, gap in zip(wanted, gaps, strict=True)), gaps
        await node.publish(21)
        await trio.sleep(2 * REANNOUNCE_S)
        assert said.count(said[-1]) == 2, "a newer one is repeated soon"
