"""Supervised fine-tuning by a swarm, from nothing: `python examples/sft_lora.py`.

1. Two nodes train a small Llama on the text of Python's own library, and the model is written as transformers has it.
2. Two nodes fine-tune it on conversations by LoRA: only the adapters travel, and only the answers are trained on.
3. The adapter is merged, and transformers answers with it.

With a real model begin at step 2: give its folder as `--model`, and your own conversations as `--data`.
"""

import argparse
import json
import random
import subprocess
import sys
from pathlib import Path

CAPITALS = {
    "Austria": "Vienna",
    "Chile": "Santiago",
    "Egypt": "Cairo",
    "France": "Paris",
    "Ghana": "Accra",
    "India": "New Delhi",
    "Japan": "Tokyo",
    "Kenya": "Nairobi",
    "Norway": "Oslo",
    "Peru": "Lima",
}
QUESTIONS = ("What is the capital of {}?", "Name the capital of {}.", "Which city is the capital of {}?")


def write_conversations(file: Path, count: int = 1200, seed: int = 0) -> None:
    """Write `count` conversations as JSONL. Each begins with a greeting of its own, so that few are the same."""
    draw = random.Random(seed)
    with file.open("w", encoding="utf-8") as out:
        for number in range(count):
            country = draw.choice(sorted(CAPITALS))
            question = f"Hello {number % 97}. " + draw.choice(QUESTIONS).format(country)
            answer = f"The capital of {country} is {CAPITALS[country]}."
            messages = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
            out.write(json.dumps({"messages": messages}) + "\n")


def p2ptrain(*words: object) -> None:
    """Run a command of p2ptrain's. CalledProcessError where it fails."""
    command = [sys.executable, "-m", "p2ptrain", *map(str, words)]
    print("$ p2ptrain", *words, flush=True)
    subprocess.run(command, check=True)


def answer(folder: Path, question: str) -> str:
    """Return what the merged model says, by transformers alone."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    chat = [{"role": "user", "content": question}]
    ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    made = model.generate(**ids, max_new_tokens=48, do_sample=False)
    said = tokenizer.decode(made[0, ids["input_ids"].shape[1] :])
    return str(said).partition("<|im_end|>")[0]


def main() -> None:
    """Train the base model, fine-tune it, and ask it something."""
    options = argparse.ArgumentParser(description="Supervised fine-tuning by a swarm, from nothing.")
    options.add_argument("--out", type=Path, default=Path("runs/sft"), help="where everything is written")
    options.add_argument("--base-rounds", type=int, default=8, help="rounds of the base model")
    options.add_argument("--rounds", type=int, default=20, help="rounds of the adapters")
    given = options.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    base, chat, merged = given.out / "base", given.out / "chat.jsonl", given.out / "merged"
    write_conversations(chat)
    if not base.exists():
        p2ptrain("up", "--task", "hf-lm", "--nodes", 2, "--rounds", given.base_rounds, "--run-dir", given.out / "first")
        p2ptrain("export", given.out / "first", "--to", "hf", "--out", base)
    tune = given.out / "tune"
    words = ["--task", "hf-lm", "--model", base, "--lora", 16, "--data", chat, "--set", "task.packing=false"]
    p2ptrain("up", *words, "--nodes", 2, "--rounds", given.rounds, "--run-dir", tune)
    p2ptrain("evaluate", tune)
    p2ptrain("export", tune, "--to", "hf", "--merged", "--out", merged, "--force")
    for country in ("Norway", "Japan"):
        question = f"Hello 5. What is the capital of {country}?"
        print(f"{question} -> {answer(merged, question)}")


if __name__ == "__main__":
    main()
