"""Small scenarios for tests, played in this process or in one of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from node.simulation.scenario_file import LoadedScenario, load_scenario
from node.simulation.twin import Played, play

ROOT = Path(__file__).parents[2]
LIBRARY = sorted((ROOT / "configs" / "scenarios").glob("*.toml"))
FAITHFUL = [path for path in LIBRARY if 'mode = "large"' not in path.read_text(encoding="utf-8")]

SMALL = """
until_s = 120.0

[train]
rounds = 3
inner_steps = 3
batch_size = 8
warmup_steps = 3
epsilon = 1e-8
eval_every = 3

[node]
checkpoint_every = 1
linger_s = 1.0

[links.home]
up = "10 Mbit/s"
down = "50 Mbit/s"
jitter_ms = 5

[devices.desktop]
step_s = 0.1
sigma = 0.2

[[nodes]]
name = "home"
count = 4
link = "home"
device = "desktop"
"""


def scenario_in(folder: Path, text: str = "", *sets: str, seed: int | None = None) -> LoadedScenario:
    """SMALL with `text` behind it."""
    path = folder / "scenario.toml"
    path.write_text(SMALL + text, encoding="utf-8")
    return load_scenario(path, sets, seed=seed)


def played(folder: Path, text: str = "", *sets: str, seed: int | None = None) -> Played:
    """It, simulated."""
    return play(scenario_in(folder, text, *sets, seed=seed))


def ran(
    *arguments: str, hash_seed: str = "random", code: str = "", timeout: float = 300
) -> subprocess.CompletedProcess[str]:
    """`p2ptrain simulate` with these arguments, in a process of its own; or `code` in its place."""
    words = ["-c", code] if code else ["-m", "p2ptrain", "simulate"]
    return subprocess.run(
        [sys.executable, *words, *arguments],
        cwd=ROOT,
        env=os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def result_of(*arguments: str, **how: Any) -> dict[str, Any]:
    """What `--json` prints."""
    done = ran(*arguments, "--json", **how)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))
