"""scripts/unequal_speeds.py with real processes: five loops whose steps take 1 : 1 : 2 : 5 : 10, over libp2p.

The slowest alone has the nines. It runs alone: on a busy machine few of the slowest's updates are in time.
"""

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from processes_harness import PATIENCE_S, Program

pytestmark = [pytest.mark.thorough, pytest.mark.slow]

SCRIPT = Path(__file__).parents[2] / "scripts" / "unequal_speeds.py"
ROUNDS = 16


def played(folder: Path) -> dict[str, Any]:
    """Return the row that the script prints. Its members are killed with it where it takes too long."""
    words = ["--what", "real", "--data", "lone", "--ways", "dylu, fednova", "--seeds", 0, "--rounds", ROUNDS]
    words += ["--rate", 1e-2, "--step-s", 0.03, "--out", folder]
    with Program(folder, *words, run=[SCRIPT], real=True) as program:
        try:
            code = program.end(within_s=3 * PATIENCE_S)
        except subprocess.TimeoutExpired:
            program.interrupt(signal.SIGKILL)
            raise
        assert code == 0, program.stderr
        return dict(json.loads(program.lines[-1]))


def test_slowed_processes_close_their_rounds_and_the_slowest_is_learned_from(tmp_path: Path) -> None:
    told = played(tmp_path)
    (rounds,) = told["rounds_of_each_node"]
    assert min(rounds) >= ROUNDS - 3, "who came late begins at the others' round"
    (steps,) = told["steps_of_each_node"]
    assert steps[-1] < steps[0] / 2, "by its share, and not by all"
    (seen,) = told["seen_of_each_node"]
    assert min(seen[:-1]) >= ROUNDS / 4, "each takes the slowest's updates"
    assert told["nines"][0] > 0.05, "nobody else has one"
