"""Newcomers that meet each other before they meet the members: nobody waits for who has nothing to give."""

from pathlib import Path
from typing import Any

import trio
import trio.testing
from sim_swarm import STEP_SECONDS, Member, swarm

from node.entry import JOIN_PATIENCE_S, NEWCOMERS_S

SETTINGS: dict[str, Any] = {"train": {"rounds": 600, "eval_every": 600}, "sync": {"f": 1}}
PHASE_S = 5 * STEP_SECONDS


async def test_two_newcomers_to_one_member_do_not_wait_for_each_other(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """Each has two neighbours, wants three models because of f = 1, and the other one has none."""
    joined: dict[str, float] = {}
    with trio.fail_after(200):
        async with swarm(tmp_path) as members:
            await members.start("first", **SETTINGS)
            await trio.sleep(20 * PHASE_S)
            began = trio.current_time()
            late: list[Member] = [await members.start(name, wait_for=2, **SETTINGS) for name in ("b", "c")]
            while len(joined) < len(late):
                joined = {it.name: fields["at"] - began for it in late for fields in it.told("joined")}
                await trio.sleep(PHASE_S)
            for it in late:
                it.stop.set()
    assert min(joined.values()) > NEWCOMERS_S - 1
    assert max(joined.values()) < NEWCOMERS_S + 10 * PHASE_S < JOIN_PATIENCE_S / 2
