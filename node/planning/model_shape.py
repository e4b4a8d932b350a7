"""How large a model is and what it computes: parameters, layers, widths. Nothing is allocated.

A number of parameters alone says nothing of layers and widths. They are then those of a dense transformer whose width
is 128 times its depth, which is what models between 1 and 100 billion parameters have; `is_assumed` says so.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

WIDTH_TO_DEPTH: Final = 128
"""Of Llama 3 8B and 70B (4,096 / 32, 8,192 / 80 = 102)."""
HEAD_WIDTH: Final = 128
MATRICES: Final = 12
"""Parameters of a layer over its squared width: 4 of attention and 8 of the MLP."""
USUAL_VOCABULARY: Final = 128_256

LLAMA_LIKE: Final = ("llama", "mistral", "qwen2", "qwen3")
"""Values of `model_type` whose parameters are counted by `llama_parameters`."""


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """A transformer, by its numbers."""

    parameters: int
    trained: int
    """Parameters that a step changes: fewer than `parameters` under adapters."""
    multiplied: int
    """Parameters that take part in a matrix product for every token: all but an input embedding of its own."""
    layers: int
    width: int
    heads: int
    head_width: int
    vocabulary: int
    is_assumed: bool
    """Whether layers and widths were guessed from the number of parameters."""
    gated_width: float = 0.0
    """Of a gated MLP's hidden layer (SwiGLU), over `width`; 0: an MLP of four times the width, ungated."""
    key_share: float = 1.0
    """Heads of keys over those of queries."""
    frozen_bytes: float = 0.0
    """Of the frozen parameters on the device."""
    source: str = ""

    def flops(self, sequences: float, length: float) -> float:
        """Return the floating point operations of a step on so many sequences of `length` tokens: 6 N a token (4 N of
        frozen ones, whose gradient is not taken), and 12 L d_attn T a token for attention (PaLM, 2204.02311)."""
        frozen = 1 - self.trained / self.parameters
        per_token = (6 - 2 * frozen) * self.multiplied
        attention = 12 * self.layers * self.heads * self.head_width * length
        return sequences * length * (per_token + attention)

    def with_trained(self, trained: float, *, bits: float = 16) -> "ModelShape":
        """Return the same model with so many trained parameters beside it, as adapters have, all others frozen in so
        many bits. ValueError unless these are fewer."""
        if not 1 <= round(trained) < self.parameters:
            raise ValueError(
                f"trained parameters must be fewer than the model's {self.parameters:,}, and one at least, not "
                f"{trained:g}"
            )
        return replace(self, trained=round(trained), frozen_bytes=(self.parameters - round(trained)) * bits / 8)


def shape_of_size(parameters: float) -> ModelShape:
    """Return a model of so many parameters, with layers and widths as such models have them. ValueError unless that
    is one at least."""
    if round(parameters) < 1:
        raise ValueError(f"a model has one parameter at least, not {parameters:g}")
    layers = max(1, round((parameters / (MATRICES * WIDTH_TO_DEPTH**2)) ** (1 / 3)))
    width = max(8, round((parameters / (MATRICES * layers)) ** 0.5))
    head_width = min(HEAD_WIDTH, width)
    return ModelShape(
        parameters=round(parameters),
        trained=round(parameters),
        multiplied=round(parameters),
        layers=layers,
        width=width,
        heads=max(1, width // head_width),
        head_width=head_width,
        vocabulary=USUAL_VOCABULARY if parameters >= 1e8 else 256,
        is_assumed=True,
        source="parameters alone: layers and widths as such models have them",
    )


def shape_of_byte_lm(size: str) -> ModelShape:
    """Return a byte-lm's. ValueError, which lists the sizes, where there is none of that name."""
    import torch

    from p2ptrain.tasks.byte_lm import SIZES, ByteGPT

    if size not in SIZES:
        raise ValueError(f"byte-lm has no size {size!r}; there are: {', '.join(SIZES)}")
    chosen = SIZES[size]
    with torch.device("meta"):
        parameters = sum(each.numel() for each in ByteGPT(chosen).parameters())
    return ModelShape(
        parameters=parameters,
        trained=parameters,
        multiplied=parameters,  # the head is the embedding, and is multiplied by
        layers=chosen.layers,
        width=chosen.width,
        heads=chosen.heads,
        head_width=chosen.width // chosen.heads,
        vocabulary=256,
        is_assumed=False,
        source=f"byte-lm {size}",
    )


def context_of_byte_lm(size: str) -> int:
    """Return the bytes that a byte-lm of this size sees."""
    from p2ptrain.tasks.byte_lm import SIZES

    return SIZES[size].context


def shape_of_config(path: Path) -> ModelShape:
    """Return the shape of a model of Hugging Face from its config.json, or the folder with it. Counted on the device
    `meta` where transformers is installed, else by arithmetic. ValueError for a file that cannot be read as one."""
    file = path / "config.json" if path.is_dir() else path
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{file} cannot be read: {error.strerror}") from None
    except ValueError:
        raise ValueError(f"{file} is no JSON") from None
    if not isinstance(config, dict):
        raise ValueError(f"{file} is no model's configuration")
    parameters = _counted(file, config)
    width, layers, heads = (_number(file, config, key) for key in ("hidden_size", "num_hidden_layers", _HEADS))
    vocabulary = _number(file, config, "vocab_size")
    embedding = 0 if config.get("tie_word_embeddings", False) else vocabulary * width
    return ModelShape(
        parameters=parameters,
        trained=parameters,
        multiplied=parameters - embedding,
        layers=layers,
        width=width,
        heads=heads,
        head_width=_head_width(config, width, heads),
        vocabulary=vocabulary,
        gated_width=_gated_width(config, width),
        key_share=(config.get("num_key_value_heads") or heads) / heads,
        is_assumed=False,
        source=str(file),
    )


_HEADS: Final = "num_attention_heads"


def llama_parameters(config: Mapping[str, Any]) -> int:
    """Return the exact number of parameters of a model like Llama from its config.json. KeyError where a key lacks."""
    kind = config["model_type"]
    width, heads, inner = config["hidden_size"], config[_HEADS], config["intermediate_size"]
    head_width, keys = _head_width(config, width, heads), config.get("num_key_value_heads") or heads
    queries = width * heads * head_width
    attention = 2 * queries + 2 * width * keys * head_width
    if kind == "qwen2" or config.get("attention_bias"):
        attention += (heads + 2 * keys) * head_width
        attention += width if kind in ("llama", "qwen3") else 0
    norms = 2 * width + (2 * head_width if kind == "qwen3" else 0)
    biases = (2 * inner + width) if config.get("mlp_bias") else 0
    layer = attention + 3 * width * inner + norms + biases
    tables = config["vocab_size"] * width * (1 if config.get("tie_word_embeddings", False) else 2)
    return int(config["num_hidden_layers"] * layer + tables + width)


def _counted(file: Path, config: Mapping[str, Any]) -> int:
    from importlib.util import find_spec

    if find_spec("transformers") is not None:
        from p2ptrain.tasks.base import TaskError
        from p2ptrain.tasks.hf.base_model import open_base

        try:
            return open_base(str(file), "AutoModelForCausalLM").numel()
        except TaskError as error:
            raise ValueError(str(error)) from None
    kind = config.get("model_type")
    if kind not in LLAMA_LIKE:
        raise ValueError(
            f"{file}: without transformers only {', '.join(LLAMA_LIKE)} are counted, not {kind}; "
            "install the extra hf, or give --params"
        )
    try:
        return llama_parameters(config)
    except (KeyError, TypeError):
        raise ValueError(f"{file} lacks what a {kind} is counted by") from None


def _number(file: Path, config: Mapping[str, Any], key: str) -> int:
    value = config.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{file} has no {key}, or none that is a number above 0")
    return value


def _gated_width(config: Mapping[str, Any], width: int) -> float:
    """The hidden width of a gated MLP over the model's, of the kinds that have one; 0 for all others."""
    inner = config.get("intermediate_size")
    return inner / width if config.get("model_type") in LLAMA_LIKE and isinstance(inner, int) else 0.0


def _head_width(config: Mapping[str, Any], width: int, heads: int) -> int:
    return int(config.get("head_dim") or width // heads)
