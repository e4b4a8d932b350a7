"""scripts/hundred_visitors.py at a small size: programs and tabs that visit for real, and liars among them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from browser_harness import CHROMIUM
from processes_harness import PATIENCE_S

pytestmark = [pytest.mark.thorough, pytest.mark.paired, pytest.mark.slow]

SCRIPT = Path(__file__).parents[2] / "scripts" / "hundred_visitors.py"


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium (Debian: chromium)")
def test_programs_and_tabs_visit_within_two_payloads_and_one_difference() -> None:
    words = ["--visitors", 8, "--visits", 2, "--tab-visits", 2, "--liars", 0.25, "--rounds", 12, "--programs", 2]
    ended = subprocess.run(
        [sys.executable, SCRIPT, *map(str, words)],
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE_S,
        check=False,
        env=os.environ | {"PYTHONPATH": str(SCRIPT.parents[1])},
    )
    assert ended.returncode == 0, ended.stderr
    told = json.loads(ended.stdout)
    assert told["came"] == 8
    assert told["accepted"]["programs"] >= 4
    assert told["accepted"]["tabs"] >= 4
    assert told["liars"] == 2
    assert told["lies_accepted"] >= 2
    assert told["models_of_tabs"]["whole"] == 4, "a tab has none before its first visit"
    assert all(each["most"] <= told["most_bytes_allowed"] for each in told["bytes_a_visit"].values())
    assert max(told["of_each_host"]) < 1.5
