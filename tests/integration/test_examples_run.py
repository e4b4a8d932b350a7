"""The examples of `p2ptrain.join` and of the callbacks, as a user runs them: real processes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.paired, pytest.mark.thorough]

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("plain_loop.py", ["--steps", "60", "--run-dir", "run"]),
        ("hf_trainer.py", ["--steps", "12", "--out", "out", "--threads", "1"]),
        ("sft_trl.py", ["--steps", "30", "--out", "out"]),
    ],
)
def test_an_example_trains_and_says_its_loss(tmp_path: Path, name: str, options: list[str]) -> None:
    if name != "plain_loop.py":
        pytest.importorskip("trl" if name == "sft_trl.py" else "transformers")
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *options],
        cwd=tmp_path,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(EXAMPLES.parent)},
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    loss = float(done.stdout.strip().splitlines()[-1].partition("held-out loss ")[2].split()[0].rstrip(","))
    most = {"plain_loop.py": 1.9, "hf_trainer.py": 4.5, "sft_trl.py": 3.5}[name]
    assert loss < most, "2.3, 5.6 and 5.6 at the beginning"
    assert (tmp_path / options[options.index("--run-dir" if "--run-dir" in options else "--out") + 1]).is_dir()
