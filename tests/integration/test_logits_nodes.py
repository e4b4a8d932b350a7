"""Real processes that share logits: to the end, further from their checkpoints, and what they say of it."""

import json
from pathlib import Path

import pytest
from processes_harness import DIGITS, Program, up

from node.system.run_dir import CHECKPOINTS
from node.training.checkpoint import CheckpointStore

LOGITS = ("--nodes", 3, *DIGITS, "--inner-steps", 5, "--set", "task.public=40", "--set", "train.shares=logits")


@pytest.mark.thorough
def test_nodes_share_logits_and_go_on_from_their_checkpoints(tmp_path: Path) -> None:
    with up(tmp_path, *LOGITS, "--rounds", 3) as program:
        assert program.end() == 0, program.stderr
    aims = {each: target(tmp_path, each) for each in range(3)}
    assert all(aims.values()), "each has heard something of the others"
    with up(tmp_path, "--rounds", 5) as program:
        assert program.end() == 0, program.stderr
    check_end(program, tmp_path)


def target(folder: Path, node: int) -> float:
    """How much of a consensus a node's newest checkpoint has."""
    saved = CheckpointStore(folder / "run" / f"node-{node}" / CHECKPOINTS).newest()
    assert saved is not None
    return float(saved.trainer_state["consensus.target"].abs().sum())


def check_end(program: Program, folder: Path) -> None:
    summary = json.loads((folder / "run" / "summary.json").read_text())
    assert [node["resumed_from"] for node in summary["nodes"]] == ["round 3"] * 3
    assert [node["rounds"] for node in summary["nodes"]] == [5] * 3
    assert all(node["parameters"] == 400 and node["updates_accepted"] > 0 for node in summary["nodes"])
    swarm = summary["swarm"]
    assert swarm["eval_loss_last"] < swarm["eval_loss_first"]
    for name in ("eval_loss_mean_model", "consensus_distance", "all_reduce_bits"):
        assert swarm[name] is None, f"{name} is of parameters that are averaged, and none are"
