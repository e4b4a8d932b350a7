"""The same plan is the same run: event for event, in this process and in any other."""

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from adversary_plan import draw
from adversary_run import play

SEED = 9
"""One that breaks nothing and has many moves."""

PLAY = Path(__file__).with_name("play.py")


@cache
def first() -> str:
    """The digest of the run with this seed, played once for all."""
    return play(draw(SEED)).digest


@pytest.mark.thorough
def test_the_same_seed_is_the_same_run_twice_and_another_seed_is_another() -> None:
    assert play(draw(SEED)).digest == first()
    assert play(draw(SEED + 11)).digest != first()


@pytest.mark.thorough
def test_the_same_seed_is_the_same_run_in_another_process() -> None:
    environment = {**os.environ, "PYTHONHASHSEED": "1"}  # that is not what play.py goes by
    told = subprocess.run(
        [sys.executable, str(PLAY), str(SEED)], env=environment, capture_output=True, text=True, check=False
    )
    assert f" {first()[:8]} " in told.stdout, told.stdout + told.stderr
