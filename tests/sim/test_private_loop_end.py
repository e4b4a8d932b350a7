"""A private loop that ends with its budget waits for the round whose move was released last: real nodes, virtual clock,
and a neighbour so slow that the round stays open when the budget is found to be spent."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing
from sim_swarm import Member, swarm

from node.config.schema import Config
from node.privacy.ledger import read_ledger
from node.roles.joined import JoinedNode
from node.system.run_dir import PRIVACY
from node.training.pace import Pace
from node.training.run_state import RunState
from p2ptrain.training import Trainer

PRIVATE = {"privatizer": "update", "noise": 8.0, "clip": 1.0, "epsilon": 1.0}
SLOW = 20
"""Times as long as the private node's are the steps of its neighbour."""


def released(member: Member) -> int:
    return sum(read_ledger(member.folder / PRIVACY).releases.values())


async def ended_with_its_budget(folder: Path) -> tuple[Member, bool]:
    """Play a private node until its budget is spent, and then end it as a loop of a user's own does. Returns it, and
    whether a round was being closed at that time."""
    async with swarm(folder) as members:
        slow = await members.start("slow", train={"rounds": 40}, step_seconds=0.1 * SLOW)
        private = await members.start("private", wait_for=1, train={"rounds": 40}, step_seconds=0.1, privacy=PRIVATE)
        trainer = private.node.inner.trainer
        assert isinstance(trainer, Trainer)
        while not trainer.budget_spent:  # noqa: ASYNC110  # another thread tells a loop of a user's own
            await trio.sleep(0.01)
        closing = private.node.state.closing
        joined = SimpleNamespace(node=private.node, _set_stop=private.stop.set)
        await JoinedNode._end_with_paid_round(joined)  # type: ignore[arg-type]
        await private.done.wait()
        slow.stop.set()
    return private, closing


async def test_the_round_that_was_released_last_is_closed(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    private, closing = await ended_with_its_budget(tmp_path)
    assert closing, "or nothing is waited for"
    assert len(private.told("round")) == released(private) > 1


async def test_it_is_waited_for_no_longer_than_a_round_may_take(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("node.roles.joined.LAST_ROUND_S", 0.0)
    private, closing = await ended_with_its_budget(tmp_path)
    assert closing
    assert len(private.told("round")) == released(private) - 1


async def test_steps_whose_round_does_not_close_yet_are_waited_for_too(autojump_clock: trio.testing.MockClock) -> None:
    """A budget is found to be spent in the midst of a phase: its move is paid for, and nothing is being closed then."""
    state = RunState(config=Config(), pace=Pace("fixed", 5, f=0, own="one", clock=trio.current_time))
    stop = trio.Event()
    joined: Any = SimpleNamespace(node=SimpleNamespace(state=state), _set_stop=stop.set)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(JoinedNode._end_with_paid_round, joined)
        await trio.sleep(1)
        assert not stop.is_set(), "the steps are under way"
        state.begin_closing(waits_for_group=False)
        state.training_over.set()
        await trio.sleep(1)
        assert not stop.is_set(), "their round is being closed"
        state.enter_round(state.round + 1)
        await trio.sleep(1)
        assert not stop.is_set(), "its correction is not applied"
        state.settled.set()
        await trio.sleep(1)
        assert stop.is_set()
