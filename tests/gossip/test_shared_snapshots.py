"""Many newcomers at once: their donors' uplinks carry each model about once, and they give it to each other."""

import pytest
from gossip_joiners import seconds_to_join, sent, snapshots_in, trained_swarm
from gossip_swarm import swarm

from gossip.protocol.limits import MARK_EVERY, MIB
from gossip.running import download

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


async def test_newcomers_of_one_time_give_each_other_what_they_have(autojump_clock):
    newcomers, chunks = 8, 8
    seconds, models = await joined(newcomers, chunks=chunks, large=1)
    assert models < newcomers / 2, "and would be one each"
    assert seconds < 0.6 * newcomers * chunks * MIB / UP


@pytest.mark.soak
@pytest.mark.parametrize("alone", [False, True])
async def test_fifty_newcomers_do_not_bury_one_donor(autojump_clock, monkeypatch, alone):
    """`alone`: nobody helps, which is what sharing is measured against."""
    newcomers, chunks = 50, 16
    if alone:
        monkeypatch.setattr(download, "HELPERS", 0)
    seconds, models = await joined(newcomers, chunks=chunks, large=1)
    print(f"alone: {alone}; {seconds:.0f} s, {models:.1f} models of the busiest donor")
    assert (models < newcomers / 4) is not alone
    assert (seconds < 0.5 * newcomers * chunks * MIB / UP) is not alone
