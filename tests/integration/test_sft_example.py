"""examples/sft_lora.py from its first line to its last, with few rounds: a base model, adapters, and an answer."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "sft_lora.py"
TINY = ROOT / "tests" / "data" / "tiny-llama.json"


@pytest.mark.paired
@pytest.mark.thorough
def test_a_model_and_conversations_of_ones_own_are_tuned_and_asked(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("peft")
    base, chat = tmp_path / "base", tmp_path / "chat.jsonl"
    transformers.LlamaForCausalLM(transformers.LlamaConfig.from_json_file(TINY)).save_pretrained(base)
    rows = [
        [{"role": "user", "content": f"Question {n}?"}, {"role": "assistant", "content": "The answer is yes."}]
        for n in range(200)
    ]
    chat.write_text("".join(json.dumps({"messages": row}) + "\n" for row in rows))
    words = ["--out", tmp_path / "sft", "--model", base, "--data", chat, "--rounds", "2", "--ask", "Question 7?"]
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), *map(str, words)],
        cwd=ROOT,
        env=os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "\nQuestion 7? -> " in done.stdout  # so small a model may answer with line breaks
    first, last = (
        float(word)
        for word in re.findall(r"eval loss +([\d.]+) -> ([\d.]+)", done.stdout)[0]  # of the mean of both nodes' models
    )
    assert last < first - 0.02
    assert "product gap: " in done.stdout
    kept = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "sft" / "merged")
    assert kept.config.hidden_size == transformers.LlamaConfig.from_json_file(TINY).hidden_size


@pytest.mark.soak
def test_the_example_trains_tunes_and_answers(tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLE), "--out", str(tmp_path / "sft"), "--base-rounds", "2", "--rounds", "4"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for country in ("Norway", "Japan"):  # so small a model may answer with line breaks
        assert f"\nHello 5. What is the capital of {country}? -> " in done.stdout
    assert "product gap: " in done.stdout
    first, *_ = (tmp_path / "sft" / "chat.jsonl").read_text().splitlines()
    assert [each["role"] for each in json.loads(first)["messages"]] == ["user", "assistant"]
    assert not list((tmp_path / "sft" / "merged").glob("adapter*"))
