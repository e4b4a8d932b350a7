"""What real nodes know of their graph, and what margin they tell of by it."""

import math
from pathlib import Path

import pytest
import trio.testing
from sim_swarm import STEP_SECONDS, swarm
from sizes import thorough_but

from node.training.node import Node
from p2ptrain.aggregate.topology import known_connectivity


def mu_2(node: Node) -> float:
    theirs = [status.neighbours for status in node.service.neighbours().values()]
    return known_connectivity(len(theirs), theirs, node.service.peers_known)


@pytest.mark.thorough
@pytest.mark.parametrize(("degree", "expected"), thorough_but({(2, math.inf)}, [(8, 5.0), (2, math.inf)]))
async def test_a_full_mesh_knows_that_it_is_one(
    degree: int, expected: float, tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async with swarm(tmp_path) as members:
        for number in range(5):
            await members.start(
                f"n{number}",
                wait_for=min(4, degree) if number < 4 else 1,
                network={"degree": degree, "heartbeat_s": 3.0, "hash_in_thread_above": 1 << 40, "min_deadline_s": 0.1},
                step_seconds=5 * STEP_SECONDS,  # rounds as long as elsewhere, of one step
                train={"rounds": 60, "inner_steps": 1, "eval_every": 60},
            )
        first = members.members["n0"]
        while len(first.told("round")) < 50:  # noqa: ASYNC110
            await trio.sleep(0.05)
        known = {mu_2(member.node) for member in members.members.values() if not member.done.is_set()}
        assert known == {expected}
        await members.finished()
        for member in members.members.values():  # one definition: whatever is known of the graph, n - (2f + 1)
            for fields in member.told("round"):
                assert fields["robust_margin"] == fields["members"] - 3
