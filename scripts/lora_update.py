"""Print what an update of LoRA adapters weighs, counted from a model's configuration alone: no weights, no memory.

python scripts/lora_update.py                      the shape of Llama 3.1 8B: the table of the page on Hugging Face
python scripts/lora_update.py my-model/config.json --ranks 4,64 --targets q_proj,v_proj --compressor fp16
"""

import argparse
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

from node.config.schema import from_raw
from node.roles.memory_forecast import payload_bytes
from node.system.script_end import ended_in_a_line
from p2ptrain.tasks.hf import BaseModel, LoraOptions, adapter_size, open_base
from p2ptrain.tasks.hf.lora import ALL_LINEAR

LLAMA_8B = {
    "model_type": "llama",
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
}

DEFAULTS = [
    LoraOptions(rank=8, targets="q_proj,v_proj"),
    LoraOptions(rank=16, targets="q_proj,v_proj"),
    LoraOptions(rank=8),
    LoraOptions(rank=16),
    LoraOptions(rank=16, freeze_a=True),
]


def base_of(config: Path | None) -> BaseModel:
    """Return the model of a configuration; of none the one with 8B parameters."""
    if config is not None:
        return open_base(str(config), "AutoModelForCausalLM")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "config.json"
        file.write_text(json.dumps(LLAMA_8B))
        return open_base(str(file), "AutoModelForCausalLM")


def lines(base: BaseModel, adapters: list[LoraOptions], compressor: str) -> Iterator[str]:
    """Yield the table. The size of an update is that of an encoded vector, with the codec's scales."""
    config = from_raw({"sync": {"compressor": compressor}})
    yield "| rank | layers | `freeze_a` | parameters | an update |"
    yield "|---|---|---|---|---|"
    for each in adapters:
        numel = adapter_size(base, each)
        layers = "all" if each.targets == ALL_LINEAR else f"`{each.targets}`"
        yield (
            f"| {each.rank} | {layers} | {'yes' if each.freeze_a else 'no'} | {numel:,} | "
            f"{payload_bytes(config, numel) / 1e6:.3g} MB |"
        )


def main() -> None:
    """Print the table of the command line's model and adapters."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", nargs="?", type=Path, help="a config.json, or a folder with one")
    parser.add_argument("--ranks", help="comma-separated")
    parser.add_argument("--targets", default=ALL_LINEAR, help="names of layers, comma-separated")
    parser.add_argument("--freeze-a", action="store_true")
    parser.add_argument("--compressor", default="q2")
    given = parser.parse_args()
    adapters = [
        LoraOptions(rank=int(rank), targets=given.targets, freeze_a=given.freeze_a)
        for rank in (given.ranks or "").split(",")
        if rank
    ]
    base = base_of(given.config)
    print(f"{base.numel():,} parameters; an update as {given.compressor} encodes it\n")
    print("\n".join(lines(base, adapters or DEFAULTS, given.compressor)))


if __name__ == "__main__":
    with ended_in_a_line():
        main()
