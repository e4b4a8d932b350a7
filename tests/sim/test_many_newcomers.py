"""Newcomers that meet each other before they meet the members, and members that were away together: nobody waits for
who has nothing to give."""

from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from sim_swarm import STEP_SECONDS, Member, swarm

from node.system.errors import RunError, first_leaf
from node.training.in_time import LEAST_ROUNDS
from node.training.joining import NEWCOMERS_S, WAITED_OUT_S
from node.training.lead import AHEAD_S

SETTINGS: dict[str, Any] = {"train": {"rounds": 600, "eval_every": 600}, "sync": {"f": 1}}
PHASE_S = 5 * STEP_SECONDS
IN_ONE_STEP: dict[str, Any] = {**SETTINGS, "train": {**SETTINGS["train"], "inner_steps": 1}, "step_seconds": PHASE_S}
"""Phases as long, where nobody asks what is learned in them."""


async def test_two_newcomers_to_one_member_do_not_take_its_word_and_find_together(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """Each has two neighbours, one of which has nothing to say: the other alone may be the liar that f = 1 allows for.
    They begin after a while, and say why."""
    began_at: dict[str, float] = {}
    with trio.fail_after(200):
        async with swarm(tmp_path) as members:
            first = await members.start("first", **IN_ONE_STEP)
            await trio.sleep(20 * PHASE_S)
            began = trio.current_time()
            late: list[Member] = [await members.start(name, wait_for=2, **IN_ONE_STEP) for name in ("b", "c")]
            while len(began_at) < len(late):
                began_at = {it.name: it.told("round")[0]["at"] - began for it in late if it.told("round")}
                await trio.sleep(PHASE_S)
            for it in (first, *late):
                it.stop.set()
    for it in late:
        assert not it.told("joined")
        assert "too few to be believed" in it.told("warning")[0]["message"]
    assert NEWCOMERS_S < min(began_at.values()) <= max(began_at.values()) < WAITED_OUT_S + 10 * PHASE_S


async def test_a_newcomer_takes_nothing_from_members_far_ahead_once_the_others_have_begun(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """The pair's claim is believed for a moment, by who has heard one of the others begin and not yet the next. A model
    of those ahead would be taken as one of the first round."""
    with trio.fail_after(200):
        async with swarm(tmp_path) as members:
            pair = [await members.start(name, **IN_ONE_STEP) for name in ("a", "b")]
            await trio.sleep(20 * PHASE_S)
            late: list[Member] = []
            for name in ("c", "d", "e"):
                late.append(await members.start(name, wait_for=3, **IN_ONE_STEP))
                await trio.sleep(0.3)
            while not all(it.told("round") for it in late):  # noqa: ASYNC110
                await trio.sleep(PHASE_S)
            for it in (*pair, *late):
                it.stop.set()
    assert any("too few to be believed" in each["message"] for it in late for each in it.told("warning"))
    for it in late:
        assert all(joined["round"] > 10 for joined in it.told("joined"))
        assert not any("going on with our own" in each["message"] for each in it.told("warning"))


async def test_the_first_member_that_was_not_believed_goes_back_to_the_others_and_keeps_its_own_model(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """Three newcomers at once begin without it. It takes their model, once it has lasted, and they are four."""
    settings = {**IN_ONE_STEP, "node": {"checkpoint_every": 10}}
    with trio.fail_after(600):
        async with swarm(tmp_path) as members:
            first = await members.start("first", **settings)
            await trio.sleep(100 * PHASE_S)
            alone = first.node.state.round
            late = [await members.start(name, wait_for=3, **settings) for name in ("b", "c", "d")]
            while not first.told("joined"):  # noqa: ASYNC110
                await trio.sleep(PHASE_S)
            (joined,) = first.told("joined")
            assert joined["donors"] == 3
            assert joined["round"] < alone
            await trio.sleep(4 * PHASE_S)
            assert first.node.checkpoints.newest() is not None, "whoever is killed now goes on with the others"
            while not all(any(it["members"] == 4 for it in member.told("round")) for member in (first, *late)):  # noqa: ASYNC110
                await trio.sleep(PHASE_S)
            assert max(it.node.state.round for it in late) - first.node.state.round <= 2
            assert first.node.service.outvoted_liars
            (kept,) = first.node.checkpoints.folder.glob("alone-round-*")
            assert any(str(kept) in it["message"] for it in first.told("warning"))
            assert int(kept.name.rpartition("-")[2]) >= alone
            await trio.sleep(11 * PHASE_S)
            newest = first.node.checkpoints.newest()
            assert newest is not None
            assert newest.round <= first.node.state.round < int(kept.name.rpartition("-")[2])
            for it in (first, *late):
                it.stop.set()


async def test_a_newcomer_that_has_not_begun_is_late_with_nothing(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """It waits for five seconds, which are many short rounds of the first member: that one was told to slow down."""
    with trio.fail_after(200):
        async with swarm(tmp_path) as members:
            first = await members.start("first", **IN_ONE_STEP)
            await trio.sleep(20 * PHASE_S)
            late = await members.start("late", wait_for=1, **IN_ONE_STEP)
            began = first.node.state.round
            while not late.told("joined"):  # noqa: ASYNC110
                await trio.sleep(PHASE_S)
            assert first.node.state.round > began + LEAST_ROUNDS
            assert not any("arrived in time" in it["message"] for it in first.told("warning"))
            while not first.told("round")[-1]["updates_in_time"]:  # noqa: ASYNC110
                await trio.sleep(PHASE_S)
            for it in (first, late):
                it.stop.set()


@pytest.mark.parametrize("back", [True, False])
async def test_who_loses_the_only_one_that_knows_the_swarm_waits_for_it_and_does_not_begin_another(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, back: bool
) -> None:
    """It is restarted while the newcomer waits whether to believe it; or it does not come back."""
    settings = {**IN_ONE_STEP, "node": {"checkpoint_every": 10, "wait_timeout_s": 60.0}}
    with trio.fail_after(600):
        async with swarm(tmp_path, keep_errors=True) as members:
            first = await members.start("first", **settings)
            await trio.sleep(100 * PHASE_S)
            late = await members.start("late", wait_for=1, **settings)
            while not any("waiting for others to say" in it["message"] for it in late.told("waiting")):  # noqa: ASYNC110
                await trio.sleep(0.05)
            first.stop.set()
            await first.done.wait()
            if back:
                await trio.sleep(1.0)
                first = await members.start("first", **settings)
                while not late.told("round"):  # noqa: ASYNC110
                    await trio.sleep(PHASE_S)
                assert late.told("joined")[0]["round"] >= 100
                first.stop.set()
                late.stop.set()
            else:
                await late.done.wait()
                assert late.error is not None
                assert first_leaf(late.error, RunError) is not None
                assert not late.told("round")
    assert "have left before they gave their model" in late.told("warning")[0]["message"]


@pytest.mark.thorough
@pytest.mark.parametrize("sync", [{}, {"aggregator": "mean"}, {"strategy": "allreduce", "compressor": "int4"}])
async def test_a_pair_that_was_not_believed_goes_back_too(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, sync: dict[str, Any]
) -> None:
    """Two are too few to have withstood anybody, and of five neighbours two are no majority."""
    settings = {**SETTINGS, "sync": {"f": 1, **sync}}
    with trio.fail_after(600):
        async with swarm(tmp_path) as members:
            pair = [await members.start(name, **settings) for name in ("a", "b")]
            await trio.sleep(100 * PHASE_S)
            late = [await members.start(name, wait_for=5, **settings) for name in ("c", "d", "e", "f")]
            while not all(any(it["members"] == 6 for it in member.told("round")) for member in (*pair, *late)):  # noqa: ASYNC110
                await trio.sleep(PHASE_S)
            assert all(it.told("joined")[0]["round"] < 100 for it in pair)
            for it in (*pair, *late):
                it.stop.set()


@pytest.mark.thorough
async def test_a_member_of_a_swarm_that_stood_goes_back_for_nobody_and_waits_for_them(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """The last one of three that has withstood a liar with them: three new keys may be a crowd. More deliver behind it
    than may lie, so that its rounds are held until they are as far as it is."""
    with trio.fail_after(600):
        async with swarm(tmp_path) as members:
            last, *others = [await members.start(name, wait_for=2, **SETTINGS) for name in ("a", "b", "c")]
            await trio.sleep(20 * PHASE_S)
            assert last.node.service.outvoted_liars
            for it in others:
                it.stop.set()
            await trio.sleep(40 * PHASE_S)
            late = [await members.start(name, wait_for=3, **SETTINGS) for name in ("d", "e", "f")]
            while late[0].node.state.round < 10:  # noqa: ASYNC110
                await trio.sleep(PHASE_S)
            alone_at = last.node.state.round
            assert alone_at > 100
            while last.told("round")[-1]["members"] < 4:  # noqa: ASYNC110
                await trio.sleep(PHASE_S)
            together_at = last.node.state.round
            assert together_at - alone_at < late[0].node.state.round / 4, "it waits, and does not run further"
            assert not any(it.told("joined") for it in (last, *late))
            for it in (last, *late):
                it.stop.set()


@pytest.mark.thorough
async def test_a_fast_member_of_a_swarm_without_liars_does_not_go_back_to_the_slow(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """Under a plain mean no round withstands liars, however long they are together."""
    settings = {**SETTINGS, "sync": {"f": 1, "aggregator": "mean"}}
    with trio.fail_after(600):
        async with swarm(tmp_path) as members:
            fast = await members.start("fast", wait_for=2, step_seconds=STEP_SECONDS / 4, **settings)
            slow = [await members.start(name, wait_for=2, **settings) for name in ("b", "c")]
            await trio.sleep(4 * AHEAD_S)
            assert not fast.told("joined")
            assert not fast.node.service.outvoted_liars
            assert fast.node.state.round - slow[0].node.state.round > fast.node.config.network.max_staleness
            assert slow[0].told("round")[15]["members"] == 3, "far ahead of the others, it is a member all the same"
            for it in (fast, *slow):
                it.stop.set()


@pytest.mark.thorough
async def test_of_many_newcomers_those_beside_several_members_join_and_the_rest_follow(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """More newcomers than members, all at once: the silent majority does not hide where the swarm is."""
    with trio.fail_after(300):
        async with swarm(tmp_path) as members:
            old = [await members.start(f"n{number}", wait_for=2, **SETTINGS) for number in range(3)]
            await trio.sleep(20 * PHASE_S)
            late = [await members.start(f"late{number}", wait_for=3, **SETTINGS) for number in range(5)]
            while not all(it.told("round") for it in late):  # noqa: ASYNC110
                await trio.sleep(PHASE_S)
            for it in late:
                assert it.told("joined")[0]["donors"] >= 3
            for it in (*old, *late):
                it.stop.set()


@pytest.mark.thorough
async def test_two_that_were_away_together_do_not_wait_for_each_other(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """Both are too far behind for each other; two that are not are fewer than the f = 1 asks for."""
    async with swarm(tmp_path) as members:
        everyone = [await members.start(f"n{number}", wait_for=3, **SETTINGS) for number in range(4)]
        away = everyone[2:]
        await trio.sleep(10 * PHASE_S)
        for it in away:
            members.network.stall(it.transport.peer_id)
            it.node.executor._step_seconds = 20 * STEP_SECONDS  # type: ignore[attr-defined]
        await trio.sleep(12 * PHASE_S)
        for it in away:
            members.network.unstall(it.transport.peer_id)
            it.node.executor._step_seconds = STEP_SECONDS  # type: ignore[attr-defined]
        back = trio.current_time()
        await trio.sleep(10 * PHASE_S)
        for it in away:
            (joined,) = it.told("joined")
            assert joined["donors"] in {2, 3}, "the other one may have joined a moment before"
            assert joined["at"] - back < 4 * PHASE_S
            assert it.told("round")[-1]["members"] == 4
        for it in everyone:
            it.stop.set()
