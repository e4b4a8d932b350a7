"""Many newcomers at once: their donors' uplinks carry each model about once, and they give it to each other."""

import pytest
from gossip_joiners import crowd_to_join, seconds_to_join, sent, snapshots_in, trained_swarm
from gossip_swarm import swarm

from gossip.core.limits import MARK_EVERY, MIB

UP = 1.0 * MIB


async def joined(newcomers: int, *, chunks: int, large: int) -> tuple[float, float]:
    """Seconds until all newcomers have joined a swarm of 6, and models that the busiest donor sent meanwhile."""
    config = {"degree": newcomers + 6, "up_bytes_per_s": UP}
    async with swarm() as it:
        members = await trained_swarm(it, 6, chunks=chunks, large=large, **config)
        before = [sent(member) for member in members]
        seconds = await seconds_to_join(it, members, newcomers, **config)
        most = max(sent(member) - already for member, already in zip(members, before, strict=True))
        for node in it.nodes[6:]:
            assert snapshots_in(node) == [MARK_EVERY] * 6, "all of a time are offered the same, and pull it once"
        assert not any(node.service.stats.rejected for node in it.nodes)
    return seconds, most / (chunks * MIB)


@pytest.mark.thorough
@pytest.mark.slow
async def test_newcomers_of_one_time_give_each_other_what_they_have(autojump_clock):
    newcomers, chunks = 8, 8
    seconds, models = await joined(newcomers, chunks=chunks, large=1)
    assert models < newcomers / 2, "and would be one each"
    assert seconds < 0.6 * newcomers * chunks * MIB / UP


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("newcomers", [8, 50], ids=["eight", "fifty"])
async def test_fifty_newcomers_do_not_bury_one_donor(autojump_clock, newcomers):
    """With as many neighbours as a node has by default: most newcomers have newcomers beside them, who have nothing to
    give until somebody begins. Each is beside eight others at the most, and so no member sends many models more."""
    config, chunks = {"degree": 8, "up_bytes_per_s": UP}, 2
    async with swarm() as it:
        members = await trained_swarm(it, 6, chunks=chunks, large=6, **config)
        crowd = await crowd_to_join(it, members, newcomers, chunks=chunks, **config)
    print(f"{newcomers} newcomers: {crowd}")
    assert crowd.of_member < 12
    assert crowd.of_newcomer < 16
    assert crowd.last_s < 60
