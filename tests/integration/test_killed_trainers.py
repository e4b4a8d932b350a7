"""Training under the frameworks' own Trainers is killed (SIGKILL), resumed from their own checkpoints, killed again and
resumed again: every loss on the way, and the model at the end, are those of a run that nobody interrupted, bit for
bit."""

from pathlib import Path

import pytest
from trainer_harness import Script, killed, same, told, whole

pytestmark = [pytest.mark.thorough, pytest.mark.paired, pytest.mark.slow]


@pytest.mark.parametrize(
    ("framework", "package"),
    [("hf", "transformers"), ("sft", "trl"), ("lightning", "lightning"), ("accelerate", "accelerate")],
)
def test_killed_twice_and_resumed_twice_it_is_the_uninterrupted_run(
    tmp_path: Path, framework: str, package: str
) -> None:
    pytest.importorskip(package)
    uninterrupted = whole(framework, tmp_path / "whole")
    out = tmp_path / "killed"
    first = killed(framework, out, at=7)
    second = killed(framework, out, "--resume", at=13)
    third = whole(framework, out, "--resume")
    assert (min(second.losses()), min(third.losses())) == (6, 11), "from the checkpoints of steps 5 and 10"
    same([first, second, third], uninterrupted)
    assert len(told(out / "run", "resumed")) >= 2


def test_two_members_of_sft_meet_and_meet_again_after_a_kill(tmp_path: Path) -> None:
    """Each has conversations of its own."""
    pytest.importorskip("trl")
    paced = ("--pace", 0.05)
    with Script("sft", tmp_path / "first", "--seed", 4, "--steps", 100_000, *paced) as first:
        peer = ("--peer", first.hear("listens")["address"])
        out = tmp_path / "second"
        before = killed("sft", out, "--steps", 60, *peer, *paced, at=33)
        met = told(out / "run", "round")
        after = whole("sft", out, "--steps", 60, "--resume", *peer, *paced)
    assert min(after.losses()) == 31, "from the checkpoint of step 30"
    again = told(out / "run", "round")[len(met) :]
    for rounds in (met, again, told(tmp_path / "first" / "run", "round")):
        assert max(event["members"] for event in rounds) == 2
        assert max(event["accepted"] for event in rounds) > 0
    assert float.fromhex(after.losses()[60]) < 0.8 * float.fromhex(before.losses()[1])


@pytest.mark.parametrize(("framework", "package"), [("hf", "transformers"), ("lightning", "lightning")])
def test_an_exception_ends_the_node_in_order(tmp_path: Path, framework: str, package: str) -> None:
    """Though the Trainer of Hugging Face tells no callback of it."""
    pytest.importorskip(package)
    with Script(framework, tmp_path, "--fail-at", 7) as failed:
        assert failed.end() == 1
    assert failed.stderr.strip().splitlines()[-1] == "ArithmeticError: rank 0 fails in step 7"
    (ended,) = told(tmp_path / "run", "interrupted")
    assert ended["summary"]["steps"] == 7
    assert list((tmp_path / "run" / "node" / "checkpoint").glob("round-*"))
