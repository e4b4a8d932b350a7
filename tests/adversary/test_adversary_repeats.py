"""The same plan is the same run: event for event, in this process and in any other."""

import os
import subprocess
import sys
from pathlib import Path

from adversary_plan import draw
from adversary_run import play

SEED = 9
"""One that breaks nothing and has many moves."""

PLAY = Path(__file__).with_name("play.py")


def test_the_same_seed_is_the_same_run_twice_and_another_seed_is_another() -> None:
    first, again = play(draw(SEED)), play(draw(SEED))
    assert first.digest == again.digest
    assert play(draw(SEED + 11)).digest != first.digest


def test_the_same_seed_is_the_same_run_in_another_process() -> None:
    ours = play(draw(SEED)).digest
    environment = {**os.environ, "PYTHONHASHSEED": "1"}  # that is not what play.py goes by
    told = subprocess.run(
        [sys.executable, str(PLAY), str(SEED)], env=environment, capture_output=True, text=True, check=False
    )
    assert f" {ours[:8]} " in told.stdout, told.stdout + told.stderr
