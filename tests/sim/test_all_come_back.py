"""A swarm whose members all went down at once, and come back one after another: a power cut, a reboot of a lab."""

from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from sim_swarm import STEP_SECONDS, Member, Swarm, swarm

PHASE_S = 5 * STEP_SECONDS


def settings(f: int) -> dict[str, dict[str, Any]]:
    train = {"rounds": 3000, "eval_every": 3000}
    return {"train": train, "sync": {"f": f}, "node": {"checkpoint_every": 10}}


async def went_down(members: Swarm, names: str, f: int) -> None:
    """Train together until rounds have withstood the liars, and are in the checkpoints. All are killed then."""
    everyone = [await members.start(name, wait_for=len(names) - 1, **settings(f)) for name in names]
    await trio.sleep(33 * PHASE_S)
    assert all(it.node.service.outvoted_liars for it in everyone)
    for it in everyone:
        it.kill()
        await it.done.wait()


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("names", "f", "gap_s"),
    [("abcd", 1, 3.0), ("abcd", 1, 30.0), ("abcd", 1, 60.0), ("abc", 1, 30.0), ("abcde", 2, 40.0)],
)
async def test_members_that_come_back_one_after_another_are_one_swarm_again(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, names: str, f: int, gap_s: float
) -> None:
    """The first f + 1 train alone, and far apart, before the others are there. They are more than f, so the next one
    takes their models; the first one finds most of those behind it with whom it had stood."""
    with trio.fail_after(len(names) * gap_s + 120):
        async with swarm(tmp_path) as members:
            await went_down(members, names, f)
            back: list[Member] = []
            for name in names:
                back.append(await members.start(name, wait_for=0, **settings(f)))
                assert back[-1].resumed
                await trio.sleep(gap_s)
            began = trio.current_time()
            while not all(it.told("round")[-1]["members"] == len(names) for it in back):  # noqa: ASYNC110
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
            await went_down(members, "abcd", 1)
            back = await members.start("a", wait_for=0, **settings(1))
            await trio.sleep(40 * PHASE_S)
            late = [await members.start(name, wait_for=3, **settings(1)) for name in "efg"]
            while not any("another --run-dir" in it["message"] for it in back.told("warning")):  # noqa: ASYNC110
                await trio.sleep(PHASE_S)
            await trio.sleep(60)
            assert not back.told("joined")
            for it in (back, *late):
                it.stop.set()
