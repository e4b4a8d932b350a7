"""examples/private_phones.py as a user runs it: a real host with a certificate, and a hundred phones that visit it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from p2ptrain.privacy.accounting import epsilon_of
from p2ptrain.privacy.base import Release

EXAMPLE = Path(__file__).parents[2] / "examples" / "private_phones.py"
PATIENCE_S = 600.0
CHANCE = 0.1

pytestmark = [pytest.mark.thorough, pytest.mark.paired, pytest.mark.slow]


def test_a_hundred_phones_learn_with_a_host_within_their_budgets_though_some_lie() -> None:
    words = ["--liars", "0.1", "--rounds", "4"]
    ended = subprocess.run(
        [sys.executable, str(EXAMPLE), *words],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        env=os.environ | {"PYTHONPATH": str(EXAMPLE.parents[1]), "OMP_NUM_THREADS": "1"},
    )
    assert ended.returncode == 0, ended.stderr
    told = json.loads(ended.stdout)
    assert told["phones"] == 100
    assert told["liars"] == 10
    assert told["sums"] >= 2
    assert told["visits"] >= 48 * told["sums"]
    release = Release(mechanism="", noise=1.15, rate=1.0, count=1)
    assert epsilon_of([release], 1e-3) - 1e-3 <= told["epsilon"] <= 8.0
    assert told["accuracy"] > told["accuracy_of_one_alone"] + 0.2
    assert told["accuracy_of_one_alone"] > 2 * CHANCE
