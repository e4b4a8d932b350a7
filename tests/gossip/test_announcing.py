"""When a node tells of its newest link: at once, and again when it has not changed for a while."""

import trio
from gossip_swarm import swarm

REANNOUNCE_S = 2.0


async def test_with_short_rounds_nothing_is_announced_twice_and_the_last_link_again_and_again(autojump_clock):
    async with swarm() as it:
        node, _ = await it.start_all(2, reannounce_s=REANNOUNCE_S, heartbeat_s=600.0, silence_s=3000.0)
        said: list[bytes] = []
        publish = node.transport.publish

        async def counted_publish(data: bytes) -> None:
            said.append(data)
            await publish(data)

        node.transport.publish = counted_publish  # type: ignore[method-assign]
        for round_ in range(1, 21):
            await node.publish(round_)
            await trio.sleep(REANNOUNCE_S / 2)
        assert len(said) == len(set(said)) == 20
        await trio.sleep(5 * REANNOUNCE_S)
        assert len(set(said)) == 20
        assert 4 <= said.count(said[19]) <= 8
