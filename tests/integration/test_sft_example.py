"""examples/sft_lora.py from its first line to its last, with few rounds: a base model, adapters, and an answer."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "sft_lora.py"


@pytest.mark.soak
def test_the_example_trains_tunes_and_answers(tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLE), "--out", str(tmp_path / "sft"), "--base-rounds", "2", "--rounds", "4"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    *_, norway, japan = done.stdout.splitlines()
    assert norway.startswith("Hello 5. What is the capital of Norway? -> ")
    assert japan.startswith("Hello 5. What is the capital of Japan? -> ")
    assert "product gap: " in done.stdout
    first, *_ = (tmp_path / "sft" / "chat.jsonl").read_text().splitlines()
    assert [each["role"] for each in json.loads(first)["messages"]] == ["user", "assistant"]
    assert not list((tmp_path / "sft" / "merged").glob("adapter*"))
