"""Real processes over loopback of which three share class statistics, and one comes late with few examples."""

import shlex
import signal
from contextlib import ExitStack
from pathlib import Path

import pytest
from processes_harness import PACED, Program, node, read_log

pytestmark = [pytest.mark.thorough, pytest.mark.paired]

SHARED = ("--set", 'train.local=["6.*"]', "--set", "node.shard_count=4")
PRIVATE = ("privacy.privatizer=example", "privacy.rate=0.02", "privacy.epsilon=50", "warm_up.noise=4")


def joined(folder: Path, line: str, shard: int, *settings: str) -> Program:
    """Run the line that a node printed for others, with these settings of its own."""
    program, command, *rest = shlex.split(line)
    assert (program, command) == ("p2ptrain", "node")
    own = [word for each in (f"node.shard_index={shard}", *settings) for word in ("--set", each)]
    return node(folder, *rest, "--set", "train.threads=1", *SHARED[2:], *own)


def test_a_newcomer_over_libp2p_warms_up_by_what_members_share_and_ctrl_c_ends_it(tmp_path: Path) -> None:
    with ExitStack() as stack:
        own = ("--set", "node.shard_index=0", "--set", "warm_up.share=true")
        first = stack.enter_context(node(tmp_path / "0", *PACED, *SHARED, "--rounds", 400, *own))
        line = first.hear("join")["command"]
        first.hear_round(3)
        second = stack.enter_context(joined(tmp_path / "1", line, 1, "warm_up.share=true"))
        third = stack.enter_context(joined(tmp_path / "2", line, 2, "warm_up.share=true", *PRIVATE))
        assert first.hear("statistics_shared")["noise"] is None
        assert third.hear("statistics_shared")["noise"] == 4.0
        for each in (second, third):
            each.hear("neighbour_up", peer=first.hear("started")["peer_id"])
        asks = ("warm_up.below=1000", "warm_up.steps=20")
        at_once = ("node.wait_for=3", "node.min_donors=1")  # on a busy machine it may else begin by itself
        newcomer = stack.enter_context(joined(tmp_path / "3", line, 3, *asks, *at_once))
        told = newcomer.hear("warmed_up")
        assert told["members"] >= 1
        assert told["of_classes"] == 10
        assert len(told["classes"]) >= 8, "noised counts may leave one out"
        assert told["round"] > 0
        newcomer.hear_round(told["round"] + 1)
        for each in (newcomer, third, second, first):
            each.interrupt(signal.SIGINT)
            assert each.end() == 130
            assert each.stderr == ""
            # gossipsub hands its last seconds' broadcasts to a newcomer, which refuses those it is beyond
            assert {it["reason"] for it in each.heard("rejected")} <= {"replayed"}
    assert len([it for it in read_log(tmp_path / "3" / "run" / "node") if it["event"] == "warmed_up"]) == 1
    assert not (tmp_path / "0" / "run" / "node" / "class-statistics").exists(), "nothing is kept of what cost nothing"
    assert (tmp_path / "2" / "run" / "node" / "class-statistics").exists()
