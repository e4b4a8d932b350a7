"""Real nodes that plan rounds by what they measure: unlike machines, slow links. Loss and utilization as `fixed`."""

import math
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from types import MappingProxyType
from typing import Any

import pytest
import trio
import trio.testing
from sim_swarm import Member, swarm

from gossip.transport.memory.network import LinkQuality

WITHOUT_LIARS = MappingProxyType({"aggregator": "mean", "f": 0})


def play(
    pace: str,
    step_seconds: Sequence[float],
    *,
    rounds: int,
    inner_steps: int,
    link: LinkQuality = LinkQuality(),
    sync: Mapping[str, Any] = WITHOUT_LIARS,
    most_s: float = math.inf,
) -> list[Member]:
    """A whole run, or its first seconds: one node for each of the times that a step takes."""

    async def main(folder: Path) -> list[Member]:
        async with swarm(folder, link=link) as members:
            for number, seconds in enumerate(step_seconds):
                await members.start(
                    f"n{number}",
                    wait_for=len(step_seconds) - 1,
                    step_seconds=seconds,
                    sync=sync,
                    train={"rounds": rounds, "inner_steps": inner_steps, "eval_every": rounds},
                    node={
                        "pace": pace,
                        "checkpoint_every": 0,
                        "shard_index": number,
                        "shard_count": len(step_seconds),
                        "linger_s": 5.0,
                    },
                )
            with trio.move_on_after(most_s):
                await members.finished()
            return list(members.members.values())

    with tempfile.TemporaryDirectory() as folder:
        return trio.run(main, Path(folder), clock=trio.testing.MockClock(autojump_threshold=0))


def ended(member: Member) -> float:
    at: float = member.told("round")[-1]["at"] - member.told("round")[0]["at"]
    return at


def plans(member: Member) -> list[int]:
    return [fields["inner_steps"] for fields in member.told("round")]


def told(members: list[Member], field: str) -> list[Any]:
    return [member.told("round")[-1][field] for member in members]


@pytest.mark.thorough
def test_dylu_lets_a_slow_machine_end_with_the_others_at_the_same_loss() -> None:
    speeds = (0.05, 0.05, 0.05, 0.2)
    fixed = play("fixed", speeds, rounds=24, inner_steps=8)
    dylu = play("dylu", speeds, rounds=24, inner_steps=8)
    assert ended(fixed[-1]) > 1.2 * ended(fixed[0]), "it works off what it lags once the others are gone"
    assert ended(dylu[-1]) < 1.15 * ended(dylu[0])
    for fast in dylu[:-1]:
        assert set(plans(fast)) == {8}
    assert set(plans(dylu[-1])[4:]) == {2}, "a quarter of the speed, a quarter of the steps"
    for run in (fixed, dylu):
        assert min(told(run, "utilization")) > 0.97
        assert not any(member.told("joined") for member in run)
    losses = [fmean(member.eval_loss for member in run) for run in (fixed, dylu)]
    assert losses[1] < 1.05 * losses[0]


@pytest.mark.thorough
def test_auto_takes_as_few_steps_as_the_link_hides_and_learns_more_from_as_many() -> None:
    link = LinkQuality(bytes_per_s=20_000.0)
    fixed = play("fixed", (0.05,) * 4, rounds=9, inner_steps=20, link=link)
    auto = play("auto", (0.05,) * 4, rounds=24, inner_steps=20, link=link)
    for member in auto:
        seconds = member.node.counts.newest_bytes / link.bytes_per_s  # and some for the frames around it
        assert plans(member)[-4:] == [3] * 4
        assert 2 * 0.05 < seconds < 3 * 0.05
        assert plans(member) == sorted(plans(member), reverse=True)
        assert {fields["closed_by"] for fields in member.told("round")} == {"quorum"}
    steps = [fmean(member.node.inner.steps for member in run) for run in (fixed, auto)]
    assert 0.9 * steps[0] < steps[1] < 1.1 * steps[0]
    losses = [fmean(member.eval_loss for member in run) for run in (fixed, auto)]
    assert losses[1] < 0.8 * losses[0], "averaging more often gains more than anything else"
    assert min(told(auto, "utilization")) > 0.97
    assert min(told(auto, "utilization")) > min(told(fixed, "utilization")) - 0.01


@pytest.mark.thorough
def test_auto_keeps_machines_of_unlike_speed_together() -> None:
    auto = play("auto", (0.05, 0.05, 0.05, 0.2), rounds=24, inner_steps=8)
    for fast in auto[:-1]:
        assert set(plans(fast)[8:]) == {4}, "the time of the slow one's step"
    assert set(plans(auto[-1])[8:]) == {1}
    assert ended(auto[-1]) < 1.15 * ended(auto[0])
    assert not any(member.told("joined") for member in auto)


@pytest.mark.thorough
def test_fast_machines_that_are_too_few_to_withstand_the_liars_stay_with_the_others() -> None:
    """Four of them average nothing where f = 2: without the others they would run on, each alone."""
    liars = {"aggregator": "trimmed_mean", "f": 2}
    speeds = (0.33,) * 4 + (1.0,) * 5
    fixed = play("fixed", speeds, rounds=60, inner_steps=8, sync=liars, most_s=160.0)
    for fast in fixed[:4]:
        later = fast.told("round")[12:]
        assert fmean(len(fields["staleness"]) >= 4 for fields in later) > 0.9
    for slow in fixed[4:]:
        assert fmean(len(fields["staleness"]) for fields in slow.told("round")) > 7.5, "and keep the fast ones"


def test_the_learning_rate_follows_the_rounds_whatever_the_steps_are() -> None:
    (alone,) = play("fixed", (0.05,), rounds=2, inner_steps=10)
    node = alone.node
    node.state.round, node.pace.steps = 1, 4
    assert [node.state.schedule_step(steps) for steps in range(6)] == [10, 12, 15, 17, 19, 19]
    node.pace.steps = 10
    assert [node.state.schedule_step(steps) for steps in (0, 3, 9, 12)] == [10, 13, 19, 19]


def test_steps_beyond_those_planned_are_smaller_and_smaller() -> None:
    (alone,) = play("fixed", (0.05,), rounds=2, inner_steps=10)
    node = alone.node
    assert {node.state.rate_factor(steps) for steps in range(10)} == {1.0}
    assert [node.state.rate_factor(steps) for steps in (19, 39, 99)] == [0.5, 0.25, 0.1]
    node.pace.steps = 1
    assert [node.state.rate_factor(steps) for steps in (0, 1, 3)] == [1.0, 0.5, 0.25]
