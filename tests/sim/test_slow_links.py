"""Real nodes whose links change: what `adaptive` sends over them, and who decides how fast a link is."""

import itertools
from pathlib import Path

import pytest
import trio
import trio.testing
from sim_swarm import Member, Swarm, swarm

from gossip.transport.memory.network import LinkQuality
from node.training.bandwidth import CLOSING_SHARE
from p2ptrain.compress.adaptive import LADDER

STEP_SECONDS = 0.1
ROUNDS = 24
INNER_STEPS = 5
LABELS = [rung.label for rung in LADDER]
SLOW = LinkQuality(bytes_per_s=8_000.0)
"""The digits' 9,098 parameters take a second in int8; a round has half of one."""


async def _started(members: Swarm, count: int) -> list[Member]:
    return [
        await members.start(
            f"n{number}",
            wait_for=count - 1,
            step_seconds=STEP_SECONDS,
            sync={"compressor": "adaptive"},
            train={"rounds": ROUNDS, "inner_steps": INNER_STEPS, "eval_every": ROUNDS},
        )
        for number in range(count)
    ]


async def _after_round(member: Member, round: int) -> None:
    while len(member.told("round")) < round:  # noqa: ASYNC110
        await trio.sleep(STEP_SECONDS / 10)


def _rungs(member: Member) -> list[int]:
    """The place in the ladder, by round; 0 is the finest."""
    return [LABELS.index(fields["rung"]) for fields in member.told("round")]


def _hold_each_other(nodes: list[Member]) -> None:
    for one, other in itertools.permutations(nodes, 2):
        estimates = one.node.strategy.estimates  # type: ignore[attr-defined]
        if other.node.peer_id in estimates:
            assert estimates[other.node.peer_id].numpy().tobytes() == other.node.strategy.snapshot()


async def test_a_slow_link_gets_coarser_updates_and_finer_ones_when_it_recovers(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async with swarm(tmp_path) as members:
        nodes = await _started(members, 3)
        for round, quality in ((6, SLOW), (18, LinkQuality())):
            await _after_round(nodes[0], round)
            for one, other in itertools.combinations(nodes, 2):
                members.network.set_link(one.node.peer_id, other.node.peer_id, quality)
        await members.finished()
        for node in nodes:
            rungs, told = _rungs(node), node.told("round")
            assert set(rungs[:6]) == {0}, "fast, or not measured yet"
            settled, finest = rungs[12:18], rungs[-2:]
            assert len(set(settled)) == 1
            assert settled[0] > 0
            assert set(finest) == {0}
            room = CLOSING_SHARE * INNER_STEPS * STEP_SECONDS
            for fields in told[12:18]:  # it fits, and what is a rung finer would not have
                assert fields["link_bytes_per_s"] <= SLOW.bytes_per_s
                assert fields["payload_bytes"] <= room * fields["link_bytes_per_s"] < 2.1 * fields["payload_bytes"]
                assert fields["closed_by"] == "quorum" or fields["round"] <= 14, "the backlog is gone by then"
            assert not node.told("rejected")
            assert node.eval_loss < 0.5 * node.node.journal.first["eval_loss"]
        _hold_each_other(nodes)


@pytest.mark.thorough
async def test_one_slow_neighbour_makes_nobodys_updates_coarser_but_its_own(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async with swarm(tmp_path) as members:
        *others, slow = await _started(members, 4)
        for other in others:
            members.network.set_link(slow.node.peer_id, other.node.peer_id, SLOW)
        await members.finished()
        for other in others:
            assert set(_rungs(other)) == {0}, "a quorum of its neighbours keeps up"
        assert set(_rungs(slow)[-6:]).isdisjoint({0}), "for itself no quorum does"


async def test_a_fixed_compressor_has_no_rung(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    async with swarm(tmp_path) as members:
        for number in range(2):
            await members.start(f"n{number}", wait_for=1, train={"rounds": 3})
        await members.finished()
        for member in members.members.values():
            assert {fields["rung"] for fields in member.told("round")} == {""}
            assert {fields["payload_bytes"] for fields in member.told("round")} == {member.node.counts.newest_bytes}
