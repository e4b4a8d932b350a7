"""Training beside the closing of rounds, and training that waits for it (`node.overlap`)."""

from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from sim_swarm import Member, swarm

from gossip.transport.memory.network import LinkQuality

STEP_SECONDS = 0.1
INNER_STEPS = 4
ROUNDS = 6
LATENCY_S = 0.05
EXCHANGE_S = 3 * LATENCY_S
"""Announced, asked for, answered."""


async def _run(folder: Path, **node: Any) -> list[Member]:
    async with swarm(folder, link=LinkQuality(latency_s=LATENCY_S)) as members:
        nodes = [
            await members.start(
                f"n{number}",
                wait_for=2,
                step_seconds=STEP_SECONDS,
                train={"rounds": ROUNDS, "inner_steps": INNER_STEPS, "eval_every": ROUNDS},
                node=node,
            )
            for number in range(3)
        ]
        await members.finished()
        return nodes


def _seconds_a_round(member: Member) -> float:
    first, *_, last = member.told("round")
    return float(last["at"] - first["at"]) / (ROUNDS - 1)


async def test_a_node_that_waits_has_no_late_correction(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    for node in await _run(tmp_path, overlap=False):
        told = node.told("round")
        assert len(told) == ROUNDS
        assert {fields["late_steps"] for fields in told} == {0}
        assert {fields["steps"] for fields in told} == {INNER_STEPS}
        assert {fields["fresh"] for fields in told[1:]} == {2}
        assert _seconds_a_round(node) == pytest.approx(INNER_STEPS * STEP_SECONDS + EXCHANGE_S, rel=0.1)
        assert node.eval_loss < node.node.journal.first["eval_loss"]
        assert node.node.inner.waiting == 0, "the last round's correction is applied, too"


async def test_a_node_that_does_not_wait_loses_no_time(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    for node in await _run(tmp_path):
        assert {fields["late_steps"] for fields in node.told("round")[1:-1]} == {2}, (
            "an exchange takes a step and a half"
        )
        assert _seconds_a_round(node) == pytest.approx(INNER_STEPS * STEP_SECONDS, rel=0.1)


async def test_a_node_that_waits_does_not_wait_for_the_dead(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async with swarm(tmp_path, link=LinkQuality(latency_s=LATENCY_S)) as members:
        train = {"rounds": 2 * ROUNDS, "inner_steps": INNER_STEPS, "eval_every": ROUNDS}
        nodes = [
            await members.start(
                f"n{number}", wait_for=2, step_seconds=STEP_SECONDS, train=train, node={"overlap": False}
            )
            for number in range(3)
        ]
        while len(nodes[0].told("round")) < ROUNDS:  # noqa: ASYNC110
            await trio.sleep(STEP_SECONDS)
        nodes[2].kill()
        await members.finished()
        for node in nodes[:2]:
            assert len(node.told("round")) == 2 * ROUNDS
            assert node.told("round")[-1]["fresh"] == 1
