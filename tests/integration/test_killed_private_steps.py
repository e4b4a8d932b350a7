"""kill -9 at random moments over 50 restarts of a process that takes private steps: the ledger never has less than was
released, and no sum was released without its entry."""

import json
from itertools import pairwise
from pathlib import Path

import pytest
from processes_harness import ran
from sizes import thorough_but

pytestmark = [pytest.mark.paired]

PROGRAM = Path(__file__).with_name("killed_private_steps.py")


def killed(folder: Path, restarts: int, privatizer: str) -> None:
    killer = ran(folder, folder, 7, restarts, privatizer, within_s=240.0, run=[PROGRAM])
    assert killer.code == 0, killer.err
    lives = [json.loads(line) for line in killer.out.splitlines()]
    assert len(lives) == restarts
    assert all(life["killed"] for life in lives), killer.err
    for life in lives:
        assert life["released"] <= life["written"], life
    for before, after in pairwise(lives):
        assert after["written"] >= before["written"]
        assert after["entries"] >= before["entries"]
    busy = [after["released"] > before["released"] for before, after in pairwise(lives)]
    assert sum(busy) >= restarts // 2, "it took steps in many of its lives"


@pytest.mark.slow
@pytest.mark.parametrize("kills", thorough_but({2}, [2, 4]))
def test_a_few_kills(tmp_path: Path, kills: int) -> None:
    killed(tmp_path, kills, "example")


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("privatizer", ["example", "update"])
def test_fifty_kills(tmp_path: Path, privatizer: str) -> None:
    killed(tmp_path, 50, privatizer)
