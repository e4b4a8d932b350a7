"""Members of a live private swarm that may not do what they try: a revoked one, and an observer that publishes."""

import time
from collections.abc import Iterator

import pytest
import trio
from libp2p_harness import until
from live_swarm import ADMIN, PATIENCE_S, LiveSwarm, Resident, living_swarm

from gossip.core.errors import Reason
from gossip.membership import Role, pack_item, revoke_peer
from gossip.updates.roles import everybody_trains

pytestmark = pytest.mark.alone  # rounds on the real clock

CUT_S = 10.0
"""Within which a member that was revoked is cut everywhere: the promise of the swarm's documentation."""


@pytest.fixture
def live(tmp_path: pytest.TempPathFactory) -> Iterator[LiveSwarm]:
    with living_swarm(tmp_path) as swarm:
        yield swarm


def test_an_observer_cannot_inject_whatever_its_program_says(live: LiveSwarm) -> None:
    """It takes itself, and everybody, for a trainer; the others look at what the admin wrote."""

    async def inject() -> None:
        trainers = list(live.residents)
        liar = await live.admit(3, role=Role.OBSERVER)
        liar.service._engine._roles._role_of = everybody_trains
        async with trio.open_nursery() as nursery:
            nursery.start_soon(liar.rounds, live.finished)
            await until(
                lambda: all(each.service.stats.rejected.get((liar.peer, Reason.WRONG_ROLE)) for each in trainers),
                PATIENCE_S,
            )
            nursery.cancel_scope.cancel()
        for each in trainers:
            assert liar.peer not in each.service.neighbours()
            assert liar.peer not in {update.peer for update in each.updates}
        live.residents.remove(liar)
        liar.scope.cancel()

    live.play(inject)
    assert live.round_s(3) > 0


def holds(one: Resident, gone: Resident) -> bool:
    return gone.peer in one.transport.peers or gone.peer in one.service.neighbours()


def test_one_that_is_revoked_is_cut_everywhere_and_stays_out_after_all_have_restarted(live: LiveSwarm) -> None:
    async def revoke() -> None:
        *honest, gone = live.residents
        out = revoke_peer(ADMIN, live.chain.swarm, gone.peer, issued_at=int(time.time()), reason="left the lab")
        honest[0].service.submit([pack_item(out)])
        await until(lambda: not gone.transport.peers and not any(holds(each, gone) for each in honest), CUT_S)
        live.residents.remove(gone)
        for each in honest:
            each.scope.cancel()
        live.residents.clear()
        await trio.sleep(0.1)
        again = [await live.start(number) for number in range(2)]
        await live.settled()
        for each in again:
            with pytest.raises(
                Exception, match=r"not take us for a member: your membership was revoked .*left the lab"
            ):
                await gone.transport.dial(each.address)
            await until(lambda each=each: each.transport.drops["refused_revoked"] > 0)
            assert each.lines(f"refused {gone.peer}", "revoked: left the lab")
        assert not gone.transport.peers
        gone.scope.cancel()

    live.play(revoke)
    live.among_themselves()
