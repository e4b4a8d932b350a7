"""A newcomer whose donors leave it in the middle, and lie: it begins no later, and holds what the others hold."""

import pytest
import trio
from gossip_joiners import followed_by, model_of, trained_swarm
from gossip_swarm import FakeRuntime, swarm, until

from gossip.core.errors import Reason
from gossip.core.limits import MIB

pytestmark = pytest.mark.slow

UP = 0.5 * MIB
CHUNKS = 3
NEEDED = 3
"""2f + 1 for f = 1, as node/training/joining.py waits for."""


async def joined(*, disturbed: bool) -> tuple[float, FakeRuntime, list[FakeRuntime]]:
    """Seconds until a newcomer to a swarm of 6 holds enough models, itself, and the members."""
    async with swarm() as it:
        members = await trained_swarm(it, 6, chunks=CHUNKS, large=6, up_bytes_per_s=UP)
        liar, *dying = members[:3]
        if disturbed:
            lie = model_of(77, CHUNKS)
            liar.state, liar.marks = lambda: _given(lie), False
            liar.service._engine.publisher._offers.clear()
        began = trio.current_time()
        one = await it.start(99, peers=tuple(member.address for member in members))
        if disturbed:
            await until(lambda: one.service.stats.snapshot_bytes_received > 2 * CHUNKS * MIB)
            assert not any(one.follows(member) for member in members)
            for member in dying:
                member.scope.cancel()
        assert await one.service.wait_for_tracked(NEEDED, 60.0, of_those_here=True) >= NEEDED
        alive = [member for member in members if not (disturbed and member in (liar, *dying))]
        await until(lambda: all(followed_by(member, [one]) for member in alive))
        return trio.current_time() - began, one, members


async def _given(data: bytes) -> bytes:
    return data


@pytest.mark.thorough
async def test_two_donors_that_die_and_one_that_lies_cost_a_newcomer_no_time(autojump_clock):
    undisturbed, one, members = await joined(disturbed=False)
    assert all(one.follows(member) for member in members)
    seconds, one, (liar, *dying, _, _, _) = await joined(disturbed=True)
    assert seconds < 1.5 * undisturbed
    assert liar.peer not in one.estimates
    assert not any(member.peer in one.estimates for member in dying)
    rejected = {(peer, why) for peer, why in one.service.stats.rejected if why is not Reason.BANNED}
    assert rejected == {(liar.peer, Reason.CONTRADICTED)}
