"""A member that signs as many announcements as it can, among real nodes with rounds of a quarter of a second."""

from pathlib import Path

import pytest
import trio
import trio.testing
from sim_swarm import swarm

from gossip.core.errors import Reason

NODES, ROUNDS, ROUND_S = 5, 16, 0.25


@pytest.mark.thorough
async def test_a_signed_flood_is_charged_banned_and_holds_up_no_round(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async with swarm(tmp_path) as members:
        for number in range(NODES):
            liar = number == NODES - 1
            await members.start(
                f"n{number}",
                wait_for=NODES - 1,
                step_seconds=ROUND_S / 5,
                node={"shard_index": number, "shard_count": NODES, "checkpoint_every": 0},
                train={"rounds": ROUNDS, "eval_every": ROUNDS, "inner_steps": 5},
                attack={"name": "flood", "announcements": 400, "signed": True} if liar else {"name": "none"},
            )
        await members.finished()
        *honest, liar = members.members.values()
        for member in honest:
            (banned,) = member.told("banned")
            assert (banned["peer"], banned["reason"]) == (liar.node.peer_id, Reason.FLOODED)
            rounds = member.told("round")
            assert banned["at"] < rounds[0]["at"] + 4 * ROUND_S
            assert {fields["closed_by"] for fields in rounds} == {"quorum"}
            after = [fields for fields in rounds if fields["at"] > banned["at"]]
            assert {fields["members"] for fields in after} == {NODES - 1}, "every honest node, in every round"
            assert rounds[-1]["at"] - rounds[0]["at"] < (ROUNDS - 1) * ROUND_S + 0.2
            charged = {peer for peer, _ in member.node.service.stats.rejected} - {liar.node.peer_id}
            assert not any(member.node.service._engine.peer_scores.scores.points(peer, 0.0) for peer in charged)
