"""Measure the memory of each node of a swarm on this machine, or make a model to measure with.

    python scripts/swarm_memory.py model 300M FOLDER        a config.json alone: weights are drawn by each node
    python scripts/swarm_memory.py model 1B FOLDER          weights too, bf16, drawn once: what LoRA's frozen base is
    python scripts/swarm_memory.py run p2ptrain up ...      run the command to its end

`run` reads /proc ten times a second, and prints the most that each node's process has held: RSS; and PSS, in which what
several processes map counts once in all.
"""

import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Any, Final

import psutil

from node.system.script_end import ended_in_a_line

SAMPLE_S: Final = 0.1

SHAPES: Final[dict[str, dict[str, Any]]] = {
    "300M": {"hidden_size": 1024, "intermediate_size": 2944, "num_hidden_layers": 24, "num_key_value_heads": 8},
    "1B": {"hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 20, "num_key_value_heads": 8},
}
COMMON: Final[dict[str, Any]] = {
    "num_attention_heads": 16,
    "vocab_size": 512,
    "max_position_embeddings": 512,
    "tie_word_embeddings": True,
}


@dataclass
class Held:
    """The most bytes that a process, or all together, have held."""

    name: str
    rss: int = 0
    pss: int = 0

    def note(self, rss: int, pss: int) -> None:
        """Note what it holds now."""
        self.rss, self.pss = max(self.rss, rss), max(self.pss, pss)

    def __str__(self) -> str:
        return f"{self.name}: RSS {self.rss / 2**30:.2f} GiB, PSS {self.pss / 2**30:.2f} GiB"


def make_model(size: str, folder: str) -> None:
    """Write a Llama of this size into `folder`."""
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig

    config = LlamaConfig(**SHAPES[size], **COMMON)
    if size == "300M":
        config.save_pretrained(folder)
        return
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder)


def measure(command: list[str]) -> list[Held]:
    """Run `command`; return what each of its nodes has held at most, and all of its processes together."""
    root = psutil.Popen(command, stdout=subprocess.DEVNULL)
    nodes: dict[int, Held] = {}
    together = Held("all processes")
    while root.poll() is None:
        now = [(each, memory) for each in [root, *_below(root)] if (memory := _memory(each)) is not None]
        for process, memory in now:
            if process.pid != root.pid:
                nodes.setdefault(process.pid, Held(_name(process))).note(*memory)
        together.note(sum(rss for _, (rss, _) in now), sum(pss for _, (_, pss) in now))
        time.sleep(SAMPLE_S)
    return [*nodes.values(), together]


def _below(root: psutil.Process) -> list[psutil.Process]:
    try:
        return root.children(recursive=True)  # type: ignore[no-any-return]
    except psutil.NoSuchProcess:
        return []


def _memory(process: psutil.Process) -> tuple[int, int] | None:
    try:
        full = process.memory_full_info()
    except (psutil.Error, OSError):
        return None
    return full.rss, full.pss


def _name(process: psutil.Process) -> str:
    try:
        return str(process.cmdline()[-1])
    except psutil.Error:
        return str(process.pid)


def main() -> None:
    """Do what the command line asks for."""
    match sys.argv[1:]:
        case ["model", size, folder] if size in SHAPES:
            make_model(size, folder)
        case ["run", *command] if command:
            print(*measure(command), sep="\n")
        case _:
            sys.exit(str(__doc__))


if __name__ == "__main__":
    with ended_in_a_line():
        main()
