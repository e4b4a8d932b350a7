"""A slow node's short rounds, lengthened before they are published: real nodes whose steps take 1 : 1 : 2 : 5 : 10.

The slowest node alone has the nines. Under the plain mean they are learned where its rounds are lengthened, and not
where they count as far as they went. A trimmed mean leaves them out with either, since what one member alone has
learned lies in extreme values whatever its length; a rule that bounds lengths keeps most of it (docs/decisions/0105).
"""

import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import trio
import trio.testing
from sim_swarm import Member, swarm
from sizes import thorough_but

from node.training.inner_loop import Phase
from node.training.node import Node
from p2ptrain.sync.base import HasAnchor

SPEEDS = (1, 1, 2, 5, 10)
LONE = "node.bench.swarm.heterogeneous:lone_digit"


def play(
    normalization: str,
    *,
    pace: str = "dylu",
    speeds: tuple[int, ...] = SPEEDS,
    rounds: int = 60,
    change: Callable[[int, Node], None] = lambda number, node: None,
    **sync: Any,
) -> list[Member]:
    """A whole run, one node for each of the times that a step takes."""

    async def main(folder: Path) -> list[Member]:
        async with swarm(folder) as members:
            for number, slowness in enumerate(speeds):
                await members.start(
                    f"n{number}",
                    wait_for=len(speeds) - 1,
                    step_seconds=0.1 * slowness,
                    change=lambda node, number=number: change(number, node),  # type: ignore[misc]
                    task={"name": LONE},
                    sync=sync,
                    train={
                        "rounds": rounds,
                        "inner_steps": 20,
                        "eval_every": rounds,
                        "epsilon": 3e-2,
                        "step_normalization": normalization,
                    },
                    node={"pace": pace, "shard_index": number, "shard_count": len(speeds), "linger_s": 5.0},
                )
            await members.finished()
            return list(members.members.values())

    with tempfile.TemporaryDirectory() as folder:
        return trio.run(main, Path(folder), clock=trio.testing.MockClock(autojump_threshold=0))


@cache
def recall(aggregator: str, f: int, normalization: str) -> float:
    """Of the nines, the mean over all nodes."""
    return nines_of(play(normalization, aggregator=aggregator, f=f))


def nines_of(members: list[Member]) -> float:
    return float(sum(member.told("evaluated")[-1]["own"]["nines"] for member in members) / len(members))


@pytest.mark.thorough
def test_what_the_slowest_node_alone_has_is_learned_where_its_rounds_are_lengthened() -> None:
    assert recall("mean", 0, "none") == 0
    assert recall("mean", 0, "fednova") > 0.6


@pytest.mark.thorough
def test_a_rule_that_bounds_lengths_keeps_it_and_one_that_trims_values_does_not() -> None:
    assert recall("clipped_gossip", 1, "fednova") > recall("mean", 0, "fednova") - 0.15
    assert recall("clipped_gossip", 1, "none") == 0
    assert recall("trimmed_mean", 1, "fednova") < 0.05, "the page says so: docs/methods.md#rounds-of-few-steps"


@pytest.mark.thorough
def test_with_what_opposes_taken_back_a_wider_bound_keeps_it_as_the_mean_does() -> None:
    corrected = {"strategy": "heloco", "turn": 0.0, "shrink": 2.0}
    members = play("fednova", **corrected, aggregator="clipped_gossip", f=1, tau_times=1.5)
    assert nines_of(members) > recall("mean", 0, "fednova") - 0.05


def test_a_short_round_is_published_as_long_as_a_whole_one_and_the_model_goes_on_from_the_anchor() -> None:
    factors: list[float] = []

    def watch(number: int, node: Node) -> None:
        if number != 1:
            return
        closing = type(node.averager).close

        async def close(averager: Any, on: Node, phase: Phase, *, at_most_s: float) -> Any:
            if on is node:
                assert isinstance(node.strategy, HasAnchor)
                told = float((phase.theta_d - node.strategy.anchor_d).norm())
                factors.append(told / float((kept.pop() - node.strategy.anchor_d).norm()))
            return await closing(averager, on, phase, at_most_s=at_most_s)

        snapshot = node.inner._snapshot

        def keep() -> Any:
            theta_d, gathering = snapshot()
            kept.append(theta_d.clone())
            return theta_d, gathering

        kept: list[torch.Tensor] = []
        node.inner._snapshot = keep  # type: ignore[method-assign]
        object.__setattr__(node, "averager", _Watched(node.averager, close))

    fast, slow = play("fednova", speeds=(1, 5), rounds=8, change=watch, aggregator="mean", f=0)
    steps = [event["steps"] for event in slow.told("round")]
    assert steps[-1] == 4
    assert factors[-1] == pytest.approx(5, rel=1e-3)
    assert factors[0] == pytest.approx(20 / steps[0], rel=1e-3)
    for member in (fast, slow):
        anchor_d = member.node.strategy.anchor_d  # type: ignore[attr-defined]
        assert torch.allclose(member.node.inner.trainer.vector(), anchor_d, atol=1e-5), "the last move is applied too"


class _Watched:
    """An averager whose `close` is watched."""

    def __init__(self, averager: Any, close: Callable[..., Any]) -> None:
        self._averager, self._close = averager, close

    def __getattr__(self, name: str) -> Any:
        return getattr(self._averager, name)

    async def close(self, node: Node, phase: Phase, *, at_most_s: float) -> Any:
        return await self._close(self._averager, node, phase, at_most_s=at_most_s)


@pytest.mark.parametrize("claimed", thorough_but({10**9}, [1, 10**9]))
def test_what_a_member_says_of_its_steps_moves_nobody(claimed: int) -> None:
    def lie(number: int, node: Node) -> None:
        if number != 0:
            return
        publish = node.service.publish

        async def lying(**said: Any) -> None:
            await publish(**(said | {"steps": claimed}))

        node.service.publish = lying  # type: ignore[method-assign]

    def models(change: Callable[[int, Node], None]) -> list[torch.Tensor]:
        members = play("fednova", pace="fixed", speeds=(1, 1, 2, 3), rounds=6, change=change)
        assert any(event["steps"] < 20 for member in members for event in member.told("round")), "some are lengthened"
        return [member.node.strategy.anchor_d for member in members]  # type: ignore[attr-defined]

    for lied_d, honest_d in zip(models(lie), models(lambda number, node: None), strict=True):
        assert torch.equal(lied_d, honest_d)
