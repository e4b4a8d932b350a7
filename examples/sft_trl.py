"""A script for TRL's SFTTrainer, with one line for the swarm: a small Llama learns to answer from conversations.

python examples/sft_trl.py --out a --wait-for 1     # the first member; it prints its address
python examples/sft_trl.py --out b --peer ADDRESS   # the others; each has conversations of its own
python examples/sft_trl.py --out c --alone          # the same script without the line, to compare

`--data` takes conversations of your own: a JSON line for each, {"messages": [{"role": "user", "content": "..."}, ...]}.
Without it the script writes some into `--out`.
"""

import argparse
import json
import random
import sys
import zlib
from pathlib import Path
from typing import Any

import p2ptrain

try:
    from datasets import load_dataset
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, set_seed
    from transformers.trainer_utils import get_last_checkpoint
    from trl import SFTConfig, SFTTrainer

    from p2ptrain.integrations.transformers import SwarmCallback
except ModuleNotFoundError as error:
    sys.exit(f"sft_trl: {error.name} is not installed; it comes with: pip install 'p2ptrain[hf,trl]'")

LENGTH, HELD_OUT = 96, 32
PAD, TURN, END = "<pad>", "<turn>", "<end>"
TEMPLATE = (
    "{% for message in messages %}" + TURN + "{{ message['role'] + '\n' }}"
    "{% if message['role'] == 'assistant' %}{% generation %}{{ message['content'] }}" + END + "{% endgeneration %}"
    "{% else %}{{ message['content'] }}" + END + "{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}" + TURN + "{{ 'assistant\n' }}{% endif %}"
)
"""Of a conversation. What stands in `generation` is trained on, and nothing else."""
METALS = {"gold": "yellow", "silver": "white", "copper": "red", "lead": "grey", "bronze": "brown"}


def write_conversations(file: Path, seed: int, count: int = 400) -> None:
    """Write `count` conversations as JSONL."""
    draw = random.Random(seed)
    with file.open("w", encoding="utf-8") as out:
        for number in range(count):
            metal = draw.choice(sorted(METALS))
            question = f"{draw.choice(['Hello', 'Hi', 'Well'])} {number}. What colour is {metal}?"
            messages = [
                {"role": "user", "content": question},
                {"role": "assistant", "content": f"It is {METALS[metal]}."},
            ]
            out.write(json.dumps({"messages": messages}) + "\n")


def bytes_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer without files: bytes, and what marks a conversation. All members need the same one."""
    alphabet = {symbol: number for number, symbol in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=alphabet, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=PAD, eos_token=END, additional_special_tokens=[TURN]
    )
    fast.chat_template = TEMPLATE
    return fast


def small_llama(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """Return a Llama of 0.2M parameters. All members begin with the same one."""
    set_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=64,
            intermediate_size=192,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=LENGTH + 32,
            pad_token_id=tokenizer.pad_token_id,
            eos_token_id=tokenizer.eos_token_id,
        )
    )


def answered(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, question: str) -> str:
    """Return what the model says to a question."""
    ids = tokenizer.apply_chat_template(
        [{"role": "user", "content": question}], add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    made = model.eval().generate(**ids, max_new_tokens=24, do_sample=False)
    return str(tokenizer.decode(made[0, ids["input_ids"].shape[1] :], skip_special_tokens=True))


def main() -> None:
    """Train, and print an answer and the held-out loss."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, help="the trainer's output folder, and the node's run folder in it")
    parser.add_argument("--data", help="conversations, as JSONL")
    parser.add_argument("--peer", action="append", default=[], help="the address that another member prints")
    parser.add_argument("--swarm", help="an invite (a file, or its line), or a member's folder")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--wait-for", type=int, help="members to wait for before the first step, a minute at most")
    parser.add_argument("--alone", action="store_true", help="leave the swarm out")
    parser.add_argument("--resume", action="store_true", help="go on from the trainer's newest checkpoint")
    options = parser.parse_args()

    out = Path(options.out)
    if options.data and not Path(options.data).is_file():
        parser.error(f"there is no file {options.data}")
    if options.resume and not (out.is_dir() and get_last_checkpoint(out)):
        parser.error(f"there is no checkpoint in {out} to go on from")
    out.mkdir(parents=True, exist_ok=True)
    own = zlib.crc32(str(out.absolute()).encode())  # everybody has other conversations, in another order
    data = Path(options.data) if options.data else out / "chat.jsonl"
    if not options.data:
        write_conversations(data, seed=own)
    held_out = out / "held-out.jsonl"
    write_conversations(held_out, seed=0, count=HELD_OUT)

    tokenizer = bytes_tokenizer()
    callbacks: list[Any] = []
    if not options.alone:
        swarm = SwarmCallback(
            swarm=options.swarm, peers=options.peer, run_dir=out / "run", wait_for=options.wait_for, inner_steps=20
        )
        callbacks.append(swarm)
    trainer = SFTTrainer(
        small_llama(tokenizer),
        SFTConfig(
            options.out,
            assistant_only_loss=True,
            max_length=LENGTH,
            per_device_train_batch_size=8,
            max_steps=options.steps,
            learning_rate=3e-3,
            warmup_steps=20,
            logging_steps=20,
            save_steps=100,
            save_total_limit=2,
            report_to="none",
            use_cpu=True,
            bf16=False,
            disable_tqdm=True,
            seed=own,
        ),
        train_dataset=load_dataset("json", data_files=str(data), split="train"),
        eval_dataset=load_dataset("json", data_files=str(held_out), split="train"),
        processing_class=tokenizer,
        callbacks=callbacks,
    )
    trainer.train(resume_from_checkpoint=True if options.resume else None)
    loss = trainer.evaluate()["eval_loss"]
    question = "Hello 7. What colour is copper?"
    print(f"{question} -> {answered(trainer.model, tokenizer, question)}")
    print(f"held-out loss {loss:.4f}")


if __name__ == "__main__":
    try:
        main()
    except p2ptrain.P2PTrainError as error:  # in one line: what is wrong, and what to do
        sys.exit(f"sft_trl: {error}")
    except KeyboardInterrupt:  # the node says itself that its checkpoint is written
        sys.exit(130)
