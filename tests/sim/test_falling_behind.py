"""Each time that a node takes its neighbours' model is counted by who warns its operator."""

from pathlib import Path

import pytest
import trio
from sim_swarm import swarm

from node.training import run_watch


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
