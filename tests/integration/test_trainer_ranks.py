"""Trainers that train by several processes (DDP over gloo): these are one member of the swarm, whose rank 0 has the
node and writes the checkpoints; and none is left behind when one of them fails."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from trainer_harness import ACCELERATE, SCRIPT, TORCHRUN, Script, same, told, whole

pytestmark = [pytest.mark.thorough, pytest.mark.paired, pytest.mark.slow]

LIGHTNING = ("--devices", "2")
"""Its Trainer starts the second process itself."""


@pytest.mark.parametrize(
    ("framework", "launcher", "words"),
    [("hf", ACCELERATE, ()), ("lightning", (SCRIPT,), LIGHTNING), ("accelerate", ACCELERATE, ())],
)
def test_two_processes_are_one_member_beside_another(
    tmp_path: Path, framework: str, launcher: Sequence[object], words: Sequence[object]
) -> None:
    pytest.importorskip(framework.replace("hf", "transformers"))
    with Script(framework, tmp_path / "other", "--seed", 4, "--steps", 100_000, "--pace", 0.05) as other:
        address = other.hear("listens")["address"]
        out = tmp_path / "ranks"
        ranks = whole(framework, out, "--peer", address, "--steps", 60, *words, launcher=launcher)
    assert len(ranks.heard("done")) == 2, ranks.lines[-8:]
    assert len(ranks.digests()) == 1, "bit for bit, corrections and all"
    assert len(ranks.heard("listens")) == 1
    assert max(event["members"] for event in told(out / "run", "round")) == 2


@pytest.mark.parametrize(
    ("framework", "launcher", "fails", "words"),
    [("hf", TORCHRUN, 1, ()), ("lightning", (SCRIPT,), 0, LIGHTNING), ("accelerate", ACCELERATE, 1, ())],
)
def test_a_rank_fails_and_all_end_and_go_on_from_the_checkpoint(
    tmp_path: Path, framework: str, launcher: Sequence[object], fails: int, words: Sequence[object]
) -> None:
    """Every loss, and the model at the end, are those of a run in which nothing failed."""
    pytest.importorskip(framework.replace("hf", "transformers"))
    uninterrupted = whole(framework, tmp_path / "whole", "--steps", 12, *words, launcher=launcher)
    out = tmp_path / "failed"
    failing = ("--fail-at", 7, "--fail-rank", fails)
    with Script(framework, out, "--steps", 12, *failing, *words, launcher=launcher) as failed:
        assert failed.end() != 0
    assert f"ArithmeticError: rank {fails} fails in step 7" in failed.stderr
    assert not failed.heard("done")
    resumed = whole(framework, out, "--steps", 12, "--resume", *words, launcher=launcher)
    assert min(resumed.losses()) == 6
    same([failed, resumed], uninterrupted)
    assert len(told(out / "run", "resumed")) >= 1


@pytest.mark.parametrize(
    ("framework", "launcher", "words"),
    [("hf", TORCHRUN, ()), ("lightning", (SCRIPT,), LIGHTNING)],
)
def test_what_rank_0_is_refused_ends_all(
    tmp_path: Path, framework: str, launcher: Sequence[object], words: Sequence[object]
) -> None:
    pytest.importorskip(framework.replace("hf", "transformers"))
    out = tmp_path / "ranks"
    (out / "run" / "node" / "checkpoint").mkdir(parents=True)
    with Script(framework, out, *words, launcher=launcher) as refused:
        assert refused.end() != 0
    assert "and this training begins anew; resume it with" in refused.stderr
    assert "RunError: rank 0: " in refused.stderr, "the other one does not wait for ever"
    assert not refused.heard("step")
