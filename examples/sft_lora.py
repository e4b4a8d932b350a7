"""Supervised fine-tuning by a swarm, from nothing: `python examples/sft_lora.py`.

1. Two nodes train a small Llama on the text of Python's own library, and the model is written as transformers has it.
2. Two nodes fine-tune it on conversations by LoRA: only the adapters travel, and only the answers are trained on.
3. The adapter is merged, and transformers answers with it.

With a model of your own, it begins at step 2; with conversations of your own, a JSON line for each, such as
{"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]}:

python examples/sft_lora.py --model my-model --data chat.jsonl --ask "What is the capital of Norway?"
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
    """Run a command of p2ptrain's. What it ends with is the end of this program, too, where it fails."""
    command = [sys.executable, "-m", "p2ptrain", *map(str, words)]
    print("$ p2ptrain", *words, flush=True)
    code = subprocess.run(command, check=False).returncode
    if code:
        sys.exit(code)


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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/sft"), help="where everything is written")
    parser.add_argument("--model", type=Path, help="a model's folder to begin with, in place of a new one")
    parser.add_argument("--data", type=Path, help="conversations, as JSONL, in place of some about capitals")
    parser.add_argument("--ask", action="append", help="what the model is asked in the end")
    parser.add_argument("--base-rounds", type=int, default=8, help="rounds of the new model")
    parser.add_argument("--rounds", type=int, default=20, help="rounds of the adapters")
    options = parser.parse_args()
    for given in (options.model, options.data):
        if given is not None and not given.exists():
            parser.error(f"there is no {given}")

    out = options.out
    out.mkdir(parents=True, exist_ok=True)
    base, chat = options.model or out / "base", options.data or out / "chat.jsonl"
    if options.data is None:
        write_conversations(chat)
    if not base.exists():
        p2ptrain("up", "--task", "hf-lm", "--nodes", 2, "--rounds", options.base_rounds, "--run-dir", out / "first")
        p2ptrain("export", out / "first", "--to", "hf", "--out", base)
    tune, merged = out / "tune", out / "merged"
    words = ["--task", "hf-lm", "--model", base, "--lora", 16, "--data", chat, "--set", "task.packing=false"]
    p2ptrain("up", *words, "--nodes", 2, "--rounds", options.rounds, "--run-dir", tune)
    p2ptrain("evaluate", tune)
    p2ptrain("export", tune, "--to", "hf", "--merged", "--out", merged, "--force")
    for question in options.ask or [f"Hello 5. What is the capital of {country}?" for country in ("Norway", "Japan")]:
        print(f"{question} -> {answer(merged, question)}")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:  # the command that was running has said how it goes on
        sys.exit(130)
