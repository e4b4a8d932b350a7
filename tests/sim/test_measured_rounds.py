"""What a round's event says of itself: how long its parts took, who was clipped, how far predictions are apart."""

from collections import Counter
from pathlib import Path

import pytest
import trio
import trio.testing
from sim_swarm import swarm

CLIPPING = {"aggregator": "clipped_gossip", "f": 1}


async def test_a_liar_is_clipped_and_predictions_are_compared(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    settings = {"train": {"rounds": 5, "eval_every": 1}, "sync": CLIPPING, "wait_for": 3}
    async with swarm(tmp_path) as members:
        honest = [await members.start(f"n{number}", **settings) for number in range(3)]
        liar = await members.start("liar", **settings, attack={"name": "sign_flip"})
        await members.finished()
    for member in honest:
        rounds = member.told("round")
        named = Counter(peer for fields in rounds for peer in fields["clipped"])
        assert named[liar.node.peer_id] >= 4, "in the first round its lie is no longer than the others' steps"
        assert max(named[it.node.peer_id] for it in honest) < named[liar.node.peer_id]
        for fields in rounds:
            parts = [fields[f"{part}_s"] for part in ("publish", "collect", "aggregate")]
            assert min(parts) >= 0
            assert sum(parts) == pytest.approx(fields["close_s"])
        apart = [fields["output_divergence"] for fields in member.told("evaluated")]
        assert apart[0] is None, "nobody was there yet"
        assert all(told > 0 for told in apart[1:-1])


async def test_a_meeting_is_one_part_and_holds_no_models(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    settings = {"train": {"rounds": 2}, "sync": {"strategy": "moshpit", "f": 0}, "wait_for": 1}
    async with swarm(tmp_path) as members:
        both = [await members.start(f"n{number}", **settings) for number in range(2)]
        await members.finished()
    for member in both:
        for fields in member.told("round"):
            assert fields["collect_s"] == pytest.approx(fields["close_s"])
            assert fields["publish_s"] is None
        assert {fields["output_divergence"] for fields in member.told("evaluated")} == {None}
