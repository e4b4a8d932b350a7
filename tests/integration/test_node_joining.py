"""Terminals that become a swarm: each `p2ptrain node` prints the line with which the next one joins."""

import shlex
import signal
from pathlib import Path

import pytest
from processes_harness import DIGITS, PACED, Program, node, ran, read_log

pytestmark = pytest.mark.paired


def joined(folder: Path, line: str, *words: object) -> Program:
    """Run the line that a node printed for others, in a folder of its own."""
    program, command, *rest = shlex.split(line)
    assert (program, command) == ("p2ptrain", "node")
    return node(folder, *rest, "--set", "train.threads=1", *words)


@pytest.mark.thorough
def test_nodes_join_by_the_printed_line_and_learn_of_each_other(tmp_path: Path) -> None:
    with node(tmp_path / "1", *PACED, "--rounds", 400, "--seed", 5) as first:
        line = first.hear("join")["command"]
        first.hear_round(8)  # who is no more than a few rounds behind goes on from there by itself
        with joined(tmp_path / "2", line) as second:
            assert second.hear("joined")["donors"] == 1  # two that come at once would not take one's word
            # The third knows only the second, and gets to know the first through it.
            with joined(tmp_path / "3", second.hear("join")["command"]) as third:
                me = [each.hear("started")["peer_id"] for each in (first, second, third)]
                third.hear("neighbour_up", peer=me[0])
                first.hear("neighbour_up", peer=me[2])
                assert third.hear("joined")["round"] >= second.heard("joined")[0]["round"] > 0
                third.hear("round", members=3)
                first.hear("round", members=3)
                third.interrupt(signal.SIGTERM)
                assert third.end() == 130
                first.hear("neighbour_lost", peer=me[2], detail="it left")
            second.interrupt()
            assert second.end() == 130
            first.hear("neighbour_lost", peer=me[1], detail="it left")
        alone = len(first.heard("round"))
        first.hear("round", count=alone + 2)  # it goes on without them
        first.interrupt()
        assert first.end() == 130
        for each in (first, second, third):
            assert each.stderr == ""
            assert not each.heard("rejected")
    for number in (1, 2, 3):
        assert read_log(tmp_path / f"{number}" / "run" / "node")[-1]["event"] == "interrupted"


def test_a_swarm_of_another_task_is_not_joined(tmp_path: Path) -> None:
    with node(tmp_path / "1", *PACED, "--rounds", 400) as first:
        address = first.hear("started")["addresses"][0]
        words = ("--peer", address, "--set", "node.wait_timeout_s=2", "--listen", "/ip4/127.0.0.1/tcp/0")
        stranger = ran(tmp_path / "2", "node", *DIGITS, *words)
        assert stranger.code == 1
        assert "no neighbour after 2 s" in stranger.err
        assert "wrong_run" in stranger.err
        assert "the same --task, model options, sync.strategy with its options" in stranger.err
        assert not first.heard("neighbour_up")
        first.interrupt()
        assert first.end() == 130
