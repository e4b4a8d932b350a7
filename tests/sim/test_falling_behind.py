"""Each time that a node takes its neighbours' model is counted by who warns its operator."""

from pathlib import Path

import pytest
import trio
from sim_swarm import swarm

from node.system.errors import RunError
from node.training import run_watch
from node.training.epochs import EpochCounter


async def test_a_late_joiner_is_counted_as_one_that_took_a_model(
    tmp_path: Path, autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_watch, "JOINS_TOLD", 1)  # read at each call
    async with swarm(tmp_path) as members:
        one = await members.start("one", train={"rounds": 400})
        while one.node.state.round < 30:  # noqa: ASYNC110  # on a clock that costs nothing
            await trio.sleep(0.05)
        two = await members.start("two", train={"rounds": 400}, wait_for=1)
        while two.node.state.round < 40:  # noqa: ASYNC110  # the same
            await trio.sleep(0.05)
        assert len([each for each in two.told("warning") if "fell behind" in each["message"]]) == 1


async def test_a_full_disk_keeps_it_with_its_own_model_until_it_can_begin_a_chain(
    tmp_path: Path, autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chain begins with an epoch that is on the disk: without it, a restart could sign two histories."""
    async with swarm(tmp_path) as members:
        behind, *others = [await members.start(name, wait_for=2, train={"rounds": 600}) for name in ("a", "b", "c")]
        while behind.node.state.round < 5:  # noqa: ASYNC110
            await trio.sleep(0.05)
        advance, refused = behind.node.epochs.advance, []

        def full() -> int:
            refused.append(trio.current_time())
            raise RunError("cannot write a/epoch: No space left on device", "free some disk space")

        monkeypatch.setattr(behind.node.epochs, "advance", full)
        async with behind.node.strategy_lock:
            while others[0].node.state.round < behind.node.state.round + 40:  # noqa: ASYNC110
                await trio.sleep(0.05)
        while len(refused) < 3:  # noqa: ASYNC110
            await trio.sleep(0.05)
        assert not behind.told("joined")
        assert [each["message"] for each in behind.told("warning") if "epoch" in each["message"]] == [
            "cannot write a/epoch: No space left on device: this node cannot take the others' model, and goes on with "
            "its own until it can"
        ]
        monkeypatch.setattr(behind.node.epochs, "advance", advance)
        while not behind.told("joined"):  # noqa: ASYNC110
            await trio.sleep(0.05)
        assert behind.node.state.round >= others[0].node.state.round - 10
        assert not behind.node.state.owes_epoch, "a second full disk is said again"
        for each in (behind, *others):
            each.stop.set()


async def test_a_node_that_starts_on_a_full_disk_ends_and_says_so(
    tmp_path: Path, autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has no work to lose."""

    def full(counter: EpochCounter) -> int:
        raise RunError("cannot write late/epoch: No space left on device", "free some disk space")

    async with swarm(tmp_path, keep_errors=True) as members:
        others = [await members.start(name, wait_for=1, train={"rounds": 600}) for name in ("a", "b")]
        while others[0].node.state.round < 30:  # noqa: ASYNC110
            await trio.sleep(0.05)
        monkeypatch.setattr(EpochCounter, "advance", full)
        late = await members.start("late", wait_for=2, train={"rounds": 600})
        await late.done.wait()
        for each in others:
            each.stop.set()
    error: BaseException | None = late.error
    while isinstance(error, BaseExceptionGroup):
        (error,) = error.exceptions
    assert isinstance(error, RunError)
    assert error.message == "cannot write late/epoch: No space left on device"
