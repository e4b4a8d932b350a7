"""Training scripts as users of the frameworks write them, with the one line for the swarm.

    trainer_script.py hf|sft|lightning|accelerate OUT [options]
    torchrun --nproc-per-node 2 trainer_script.py hf OUT [options]

Of each step rank 0 prints its loss as it is, bit for bit, and at the end every rank a digest of its parameters. Options
have a script stop still after a step, to be killed there, or fail.
"""

import argparse
import hashlib
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn

import p2ptrain
from p2ptrain.integrations.swarm import Swarm

SETTINGS: dict[str, object] = {
    "network.listen": ["/ip4/127.0.0.1/tcp/0"],
    "network.upnp": False,
    "node.metrics_port": -1,
    "node.linger_s": 1.0,
}
WORDS = ("to train one model together ", "with nobody in the middle ", "on the machines of volunteers ")
RANK = int(os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0")))


def say(event: str, **fields: object) -> None:
    """Print an event, in one piece: another rank may print at the same time."""
    sys.stdout.flush()
    os.write(sys.stdout.fileno(), (json.dumps({"event": event, "rank": RANK, **fields}) + "\n").encode())


class Watch:
    """What a script does after each step beside training."""

    def __init__(self, options: argparse.Namespace, swarm: Callable[[], Swarm | None]) -> None:
        self._options, self._swarm = options, swarm

    def begun(self) -> None:
        """Say where the node is."""
        swarm = self._swarm()
        if swarm is not None and swarm.has_node:
            say("listens", address=swarm.addresses[0])

    def after_step(self, step: int, loss: float) -> None:
        """Say its loss; stop still, or fail, where that was asked for."""
        if RANK == 0:
            say("step", step=step, loss=loss.hex())
        if step == self._options.fail_at and self._options.fail_rank == RANK:
            raise ArithmeticError(f"rank {RANK} fails in step {step}")
        if step == self._options.halt_at:
            say("halted", step=step)
            time.sleep(600)
        time.sleep(self._options.pace)


def keywords(options: argparse.Namespace) -> dict[str, Any]:
    """Of p2ptrain.join, and of the callbacks."""
    return {
        "run_dir": Path(options.out) / "run",
        "peers": options.peer,
        "wait_for": len(options.peer),
        "inner_steps": options.inner_steps,
        "settings": SETTINGS,
        "quiet": True,
    }


def done(model: nn.Module) -> None:
    """Say what came out."""
    bits = b"".join(each.detach().numpy().tobytes() for each in model.parameters())
    say("done", digest=hashlib.sha256(bits).hexdigest())


def small_llama(vocabulary: int = 128) -> Any:
    """Return the model with which all members begin."""
    import transformers

    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=64,
        attention_dropout=0.1,  # so that the random numbers' place counts, too
    )
    return transformers.LlamaForCausalLM(config)


def trainer_callbacks(options: argparse.Namespace) -> list[Any]:
    """Return the swarm's callback for the Trainer of Hugging Face, and one that watches."""
    import transformers

    from p2ptrain.integrations.transformers import SwarmCallback

    swarm = SwarmCallback(**keywords(options))
    watch = Watch(options, lambda: swarm.swarm)

    class Watching(transformers.TrainerCallback):  # type: ignore[misc,name-defined]
        def on_train_begin(self, *_: Any, **__: Any) -> None:
            watch.begun()

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **__: Any) -> None:
            if "loss" in logs:
                watch.after_step(state.global_step, logs["loss"])

    return [swarm, Watching()]


def training_arguments(options: argparse.Namespace) -> dict[str, Any]:
    """Return what both Trainers are given."""
    return {
        "output_dir": options.out,
        "per_device_train_batch_size": 4,
        "max_steps": options.steps,
        "save_steps": options.save_every,
        "logging_steps": 1,
        "learning_rate": 1e-2,
        "report_to": "none",
        "use_cpu": True,
        "bf16": False,
        "disable_tqdm": True,
        "seed": options.seed,
    }


def hf(options: argparse.Namespace) -> nn.Module:
    """Train by the Trainer of Hugging Face."""
    import datasets
    import transformers

    texts = [(WORDS[index % 3] * 2)[index % 7 :][:24] for index in range(64)]
    rows = [{"input_ids": list(text.encode()), "labels": list(text.encode())} for text in texts]
    trainer = transformers.Trainer(
        small_llama(),
        transformers.TrainingArguments(**training_arguments(options)),
        train_dataset=datasets.Dataset.from_list(rows),
        callbacks=trainer_callbacks(options),
    )
    trainer.train(resume_from_checkpoint=True if options.resume else None)
    return trainer.model


def sft(options: argparse.Namespace) -> nn.Module:
    """Tune on conversations by TRL's SFTTrainer."""
    import datasets
    import trl

    sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
    from sft_trl import bytes_tokenizer, write_conversations

    tokenizer = bytes_tokenizer()
    data = Path(options.out) / "chat.jsonl"
    if RANK == 0 and not data.exists():
        write_conversations(data, seed=options.seed, count=48)
    trainer = trl.SFTTrainer(
        small_llama(len(tokenizer)),
        trl.SFTConfig(**training_arguments(options), assistant_only_loss=True, max_length=64),
        train_dataset=datasets.load_dataset("json", data_files=str(data), split="train"),
        processing_class=tokenizer,
        callbacks=trainer_callbacks(options),
    )
    trainer.train(resume_from_checkpoint=True if options.resume else None)
    return trainer.model


class Regression(nn.Module):
    """A small model with dropout, for the two frameworks that bring none."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Dropout(0.1), nn.Linear(16, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the loss on a batch (b, 8)."""
        return (self.net(x).squeeze(-1) - x @ torch.linspace(-1, 1, 8)).square().mean()


def inputs(options: argparse.Namespace, batches: int, processes: int) -> torch.utils.data.TensorDataset:
    """Return examples for so many batches of 8 a process."""
    generator = torch.Generator().manual_seed(options.seed)
    return torch.utils.data.TensorDataset(torch.randn(8 * batches * processes, 8, generator=generator))


def lightning(options: argparse.Namespace) -> nn.Module:
    """Train by the Trainer of Lightning. It keeps neither random numbers nor the place within an epoch: those of
    dropout are a step's own, and an epoch is what lies between two checkpoints."""
    import lightning.pytorch as pl
    from lightning.pytorch.callbacks import ModelCheckpoint

    from p2ptrain.integrations.lightning import SwarmCallback

    class Module(pl.LightningModule):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.inner = Regression()

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            torch.manual_seed(1000 * self.trainer.global_step + RANK)
            return self.inner(batch[0])  # type: ignore[no-any-return]

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=1e-2)

    class Watching(pl.Callback):  # type: ignore[misc,name-defined]
        def on_train_start(self, *_: Any) -> None:
            watch.begun()

        def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, *_: Any) -> None:
            watch.after_step(trainer.global_step, float(outputs["loss"]))

    swarm = SwarmCallback(**keywords(options))
    watch = Watch(options, lambda: swarm.swarm)
    kept = ModelCheckpoint(
        dirpath=options.out, every_n_train_steps=options.save_every, save_top_k=-1, filename="{step}"
    )
    trainer = pl.Trainer(
        max_steps=options.steps,
        accelerator="cpu",
        devices=options.devices,
        strategy=options.strategy or ("ddp" if options.devices > 1 else "auto"),
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=options.out,
        callbacks=[swarm, Watching(), kept],
    )
    newest = max(Path(options.out).glob("step=*.ckpt"), key=lambda path: int(path.stem[5:]), default=None)
    loader = torch.utils.data.DataLoader(inputs(options, options.save_every, options.devices), batch_size=8)
    module = Module()
    trainer.fit(module, loader, ckpt_path=newest if options.resume else None)
    return module


def accelerate(options: argparse.Namespace) -> nn.Module:
    """Train in a loop of one's own with Accelerate, which keeps all state by `save_state`."""
    from accelerate import Accelerator
    from accelerate.utils import set_seed

    set_seed(options.seed + int(os.environ.get("RANK", "0")))
    accelerator = Accelerator(cpu=True)
    bare = Regression()
    model, optimizer = accelerator.prepare(bare, torch.optim.AdamW(bare.parameters(), lr=1e-2))
    (data,) = inputs(options, 16, accelerator.num_processes).tensors
    swarm = p2ptrain.join(model, optimizer, **keywords(options))
    watch = Watch(options, lambda: swarm)
    accelerator.register_for_checkpointing(swarm)
    with swarm:
        watch.begun()
        first, newest = 0, max(Path(options.out).glob("state-*"), key=lambda path: int(path.name[6:]), default=None)
        if options.resume:
            assert newest is not None
            accelerator.load_state(str(newest))
            first = int(newest.name[6:])
            assert swarm.global_step == first
        for step in range(first, options.steps):
            at = 8 * (accelerator.num_processes * step + accelerator.process_index) % len(data)
            loss = model(data[at : at + 8])
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            if (step + 1) % options.save_every == 0:
                accelerator.save_state(str(Path(options.out) / f"state-{step + 1}"))
            watch.after_step(step + 1, loss.item())
    return bare


def main() -> None:
    """Train, as the words say."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("framework", choices=["hf", "sft", "lightning", "accelerate"])
    parser.add_argument("out")
    parser.add_argument("--steps", type=int, default=18)
    parser.add_argument("--save-every", type=int, default=5)
    parser.add_argument("--inner-steps", type=int, default=4)
    parser.add_argument("--seed", type=int, default=3)
    parser.add_argument("--peer", action="append", default=[])
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--devices", type=int, default=1, help="of Lightning")
    parser.add_argument("--strategy", help="of Lightning")
    parser.add_argument("--halt-at", type=int)
    parser.add_argument("--fail-at", type=int)
    parser.add_argument("--fail-rank", type=int, default=0)
    parser.add_argument("--pace", type=float, default=0.0)
    options = parser.parse_args()
    Path(options.out).mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    frameworks = {"hf": hf, "sft": sft, "lightning": lightning, "accelerate": accelerate}
    done(frameworks[options.framework](options))
    if distributed.is_initialized():
        # gloo's threads outlive the group, and one that needs Python while it ends aborts the process: torch's own
        # fault, seen under load with all work done.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


if __name__ == "__main__":
    main()
