"""A script for the Trainer of Hugging Face, with one line for the swarm: a small Llama on the text of Python's library.

python examples/hf_trainer.py --out a --wait-for 1     # the first member; it prints its address
python examples/hf_trainer.py --out b --peer ADDRESS   # the others; each draws its batches in its own order
python examples/hf_trainer.py --out c --alone          # the same script without the line, to compare
"""

import argparse
import statistics
import sys
import time
import zlib
from pathlib import Path
from typing import Any

import torch

import p2ptrain

try:
    import datasets
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments, set_seed
    from transformers.trainer_utils import get_last_checkpoint

    from p2ptrain.integrations.transformers import SwarmCallback
except ModuleNotFoundError as error:
    sys.exit(f"hf_trainer: {error.name} is not installed; it comes with: pip install 'p2ptrain[hf]'")

LENGTH, HELD_OUT = 128, 64


def rows() -> list[dict[str, list[int]]]:
    """Return the standard library's modules by bytes, cut into rows of LENGTH, in an order of no meaning."""
    files = sorted(Path(statistics.__file__).parent.glob("*.py"))
    text = b"\n".join(path.read_bytes() for path in files)[:1_500_000]
    cut = [list(text[at : at + LENGTH]) for at in range(0, len(text) - LENGTH, LENGTH)]
    return [{"input_ids": ids, "labels": ids} for ids in sorted(cut, key=lambda ids: zlib.crc32(bytes(ids)))]


class Clock(TrainerCallback):  # type: ignore[misc]  # transformers is not read by the type checker
    """Notes when each step ended, to tell the speed without start and end."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """Note the time."""
        self.ends.append(time.perf_counter())

    def tokens_per_s(self, tokens: int) -> float:
        """Return the speed of all steps but the first tenth, of so many tokens each."""
        seen = self.ends[len(self.ends) // 10 :]
        return tokens * (len(seen) - 1) / (seen[-1] - seen[0])


def main() -> None:
    """Train, and print the speed and the held-out loss."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, help="the Trainer's output folder, and the node's run folder in it")
    parser.add_argument("--peer", action="append", default=[], help="the address that another member prints")
    parser.add_argument("--swarm", help="an invite (a file, or its line), or a member's folder")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--wait-for", type=int, help="members to wait for before the first step, a minute at most")
    parser.add_argument("--threads", type=int, default=0, help="of torch; 0: its own choice")
    parser.add_argument("--alone", action="store_true", help="leave the swarm out")
    parser.add_argument("--resume", action="store_true", help="go on from the Trainer's newest checkpoint")
    options = parser.parse_args()
    if options.resume and not (Path(options.out).is_dir() and get_last_checkpoint(options.out)):
        parser.error(f"there is no checkpoint in {options.out} to go on from")
    if options.threads:
        torch.set_num_threads(options.threads)

    set_seed(0)  # all members begin with the same model
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=256,
            hidden_size=128,
            intermediate_size=256,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=LENGTH,
        )
    )
    data, clock = rows(), Clock()
    callbacks: list[Any] = [clock]
    if not options.alone:
        swarm = SwarmCallback(
            swarm=options.swarm, peers=options.peer, run_dir=Path(options.out) / "run", wait_for=options.wait_for
        )
        callbacks.append(swarm)
    arguments = TrainingArguments(
        options.out,
        per_device_train_batch_size=options.batch,
        max_steps=options.steps,
        learning_rate=3e-3,
        warmup_steps=20,
        logging_steps=50,
        save_steps=100,
        save_total_limit=2,
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
        seed=zlib.crc32(str(Path(options.out).absolute()).encode()),  # everybody draws other batches
    )
    trainer = Trainer(
        model,
        arguments,
        train_dataset=datasets.Dataset.from_list(data[HELD_OUT:]),
        eval_dataset=datasets.Dataset.from_list(data[:HELD_OUT]),
        callbacks=callbacks,
    )
    trainer.train(resume_from_checkpoint=True if options.resume else None)
    loss = trainer.evaluate()["eval_loss"]
    print(f"held-out loss {loss:.4f}, {clock.tokens_per_s(options.batch * LENGTH):.0f} tokens/s")


if __name__ == "__main__":
    try:
        main()
    except p2ptrain.P2PTrainError as error:  # in one line: what is wrong, and what to do
        sys.exit(f"hf_trainer: {error}")
    except KeyboardInterrupt:  # the node says itself that its checkpoint is written
        sys.exit(130)
