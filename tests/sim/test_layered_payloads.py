"""Real nodes on unlike links: each edge is averaged by the layers that it hides, and slow ones hold nobody up."""

import itertools
from pathlib import Path
from statistics import median

import pytest
import trio
import trio.testing
from sim_swarm import swarm

from gossip.transport.memory.network import LinkQuality

STEP_SECONDS = 0.2
ROUNDS = 16
INNER_STEPS = 5
SLOW, MIDDLE, FAST = (LinkQuality(bytes_per_s=rate) for rate in (2_500.0, 12_500.0, 125_000.0))
"""The digits' 9,226 parameters take 350 bytes in topk, 2.3 kB in q2 and 9 kB in int8; half of a round is half a
second."""


@pytest.mark.thorough
async def test_each_edge_takes_the_finest_layer_that_it_hides(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async with swarm(tmp_path) as members:
        nodes = [
            await members.start(
                f"n{number}",
                wait_for=3,
                step_seconds=STEP_SECONDS,
                sync={"compressor": "topk", "ratio": 1 / 64, "layers": ["q2", "int8"]},
                train={"rounds": ROUNDS, "inner_steps": INNER_STEPS, "eval_every": ROUNDS},
            )
            for number in range(4)
        ]
        ids = [node.node.peer_id for node in nodes]
        edges = dict(zip(itertools.combinations(range(4), 2), (SLOW, SLOW, SLOW, MIDDLE, MIDDLE, FAST), strict=True))
        for (one, other), quality in edges.items():
            members.network.set_link(ids[one], ids[other], quality)
        await members.finished()
        for one, node in enumerate(nodes):
            settled = node.told("round")[ROUNDS // 2 :]
            for other in (number for number in range(4) if number != one):
                quality = edges[min(one, other), max(one, other)]
                held = [fields["layers"].get(ids[other], 0) for fields in settled]
                assert median(held) == max(held) == {SLOW: 0, MIDDLE: 1, FAST: 2}[quality], (one, other, held)
            assert not node.told("rejected")
            assert max(fields["round_s"] for fields in settled) < 1.2 * INNER_STEPS * STEP_SECONDS
