"""A swarm whose members all went down at once, and come back one after another: a power cut, a reboot of a lab."""

from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from sim_swarm import STEP_SECONDS, Member, swarm

SETTINGS: dict[str, Any] = {
    "train": {"rounds": 3000, "eval_every": 3000},
    "sync": {"f": 1},
    "node": {"checkpoint_every": 10},
}
PHASE_S = 5 * STEP_SECONDS
NAMES = ("a", "b", "c", "d")


async def _went_down(members: Any) -> list[Member]:
    """Train together until rounds have withstood the liars, and are in the checkpoints. All are killed then."""
    everyone = [await members.start(name, wait_for=len(NAMES) - 1, **SETTINGS) for name in NAMES]
    await trio.sleep(33 * PHASE_S)
    assert all(it.node.service.outvoted_liars for it in everyone)
    for it in everyone:
        it.kill()
        await it.done.wait()
    return everyone


@pytest.mark.thorough
@pytest.mark.parametrize("gap_s", [3.0, 30.0, 60.0])
async def test_members_that_come_back_one_after_another_are_one_swarm_again(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, gap_s: float
) -> None:
    """The first two train alone, and far apart, before the others are there. Two are more than f = 1, so the third one
    takes their models; the first one finds most of those behind it with whom it had stood."""
    with trio.fail_after(3 * gap_s + 120):
        async with swarm(tmp_path) as members:
            await _went_down(members)
            back: list[Member] = []
            for name in NAMES:
                back.append(await members.start(name, wait_for=0, **SETTINGS))
                assert back[-1].resumed
                await trio.sleep(gap_s)
            began = trio.current_time()
            while not all(it.told("round")[-1]["members"] == len(NAMES) for it in back):  # noqa: ASYNC110
                await trio.sleep(PHASE_S)
            assert trio.current_time() - began < 60
            rounds = [it.node.state.round for it in back]
            assert max(rounds) - min(rounds) <= 2
            for it in back:
                assert it.node.service.stood_with >= {other.transport.peer_id for other in back if other is not it}
                it.stop.set()


@pytest.mark.thorough
async def test_a_member_that_comes_back_alone_goes_back_for_no_new_keys(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """It knows from its checkpoint with whom it stood: three newcomers at once are none of them."""
    with trio.fail_after(600):
        async with swarm(tmp_path) as members:
            await _went_down(members)
            back = await members.start("a", wait_for=0, **SETTINGS)
            await trio.sleep(40 * PHASE_S)
            late = [await members.start(name, wait_for=3, **SETTINGS) for name in ("e", "f", "g")]
            while not any("another --run-dir" in it["message"] for it in back.told("warning")):  # noqa: ASYNC110
                await trio.sleep(PHASE_S)
            await trio.sleep(60)
            assert not back.told("joined")
            for it in (back, *late):
                it.stop.set()
