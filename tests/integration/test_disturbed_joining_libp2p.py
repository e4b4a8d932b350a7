"""A newcomer to a swarm of 6 with 25M parameters, each a process of its own, over libp2p on loopback: two donors are
killed in the middle with SIGKILL, one lies.

Uplinks are bounded, so that the time is the links' and not this machine's.
"""

import os
import signal
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import big_donor
import pytest
import trio
from big_donor import DONORS, SIZE, Bodies, Member, identity, make_bodies, until
from processes_harness import Program

from gossip.core.errors import Reason
from gossip.core.limits import MARK_EVERY

LIAR, DYING, LEFT = 1, (2, 3), (4, 5, 6)
NEEDED = 3
WITHIN_S = 600.0


def start_donors(stack: ExitStack, folder: Path, bodies: Path, *, disturbed: bool) -> tuple[list[Program], list[str]]:
    """Six processes that have trained together, and where they are."""
    donors: list[Program] = []
    addresses: list[str] = []
    for number in DONORS:
        lies = ("lies",) if disturbed and number == LIAR else ()
        script = (big_donor.__file__, number, bodies, *lies, *addresses)
        donors.append(stack.enter_context(Program(folder / f"{number}", run=script)))
        addresses.append(donors[-1].hear("started")["address"])
    for donor in donors:
        donor.hear("trained", within_s=WITHIN_S)
    if disturbed:
        donors[LIAR - 1].hear("lies", within_s=WITHIN_S)
    return donors, addresses


async def join(donors: list[Program], addresses: list[str], bodies: Bodies, *, disturbed: bool) -> float:
    """Seconds until a newcomer holds, bit for bit, what all honest members that are left have told."""
    left = LEFT if disturbed else tuple(DONORS)
    one = Member(99, bodies, tuple(addresses))
    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        await nursery.start(lambda *, task_status: one.live(task_status=task_status))
        if disturbed:
            await until(lambda: one.service.stats.snapshot_bytes_received > 2 * SIZE, WITHIN_S)
            for number in DYING:
                assert identity(number).peer_id not in one.applied
                os.kill(donors[number - 1].pid, signal.SIGKILL)
        found = await one.service.wait_for_tracked(NEEDED, WITHIN_S, of_those_here=True)
        await until(lambda: one.level_at(MARK_EVERY + 1, left), WITHIN_S)
        seconds = trio.current_time() - began
        assert found >= NEEDED
        assert one.taken == {identity(number).peer_id: bodies.marked(number) for number in left}
        contradicted = {peer for peer, why in one.service.stats.rejected if why is Reason.CONTRADICTED}
        assert contradicted == ({identity(LIAR).peer_id} if disturbed else set())
        nursery.cancel_scope.cancel()
    return seconds


def seconds_to_join(folder: Path, bodies: Path, *, disturbed: bool) -> float:
    with ExitStack() as stack:
        donors, addresses = start_donors(stack, folder, bodies, disturbed=disturbed)
        seconds = trio.run(partial(join, donors, addresses, Bodies(bodies), disturbed=disturbed))
        if disturbed:
            assert [donors[number - 1].end() for number in DYING] == [-signal.SIGKILL] * 2
    return seconds


@pytest.mark.soak
def test_a_newcomer_to_25m_parameters_is_not_held_up(tmp_path: Path) -> None:
    make_bodies(tmp_path)
    undisturbed = seconds_to_join(tmp_path / "a", tmp_path, disturbed=False)
    disturbed = seconds_to_join(tmp_path / "b", tmp_path, disturbed=True)
    print(f"{undisturbed:.1f} s undisturbed, {disturbed:.1f} s disturbed")
    assert disturbed < 1.5 * undisturbed
