"""The hf-lm task: any causal language model of transformers on any text or conversations, whole or by LoRA."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from p2ptrain.tasks.base import Batch, Shard, TaskError
from p2ptrain.tasks.hf.base_model import BaseModel, open_base, place_of
from p2ptrain.tasks.hf.built_model import BaseDtype, FourBit, FreezeA, LoraAlpha, LoraRank, LoraTargets, built_model
from p2ptrain.tasks.hf.dealing import Part
from p2ptrain.tasks.hf.extras import require
from p2ptrain.tasks.hf.saving import merged_model, save_pretrained
from p2ptrain.tasks.hf.sources import LEAST_BLOCK_CHARS
from p2ptrain.tasks.hf.stream import ROWS, STEPS, StreamConfig, StreamedSplit, stream_source
from p2ptrain.tasks.hf.text_encoder import open_encoder
from p2ptrain.tasks.hf.token_rows import NOT_COUNTED, RowConfig, TokenRows, TokenSplit
from p2ptrain.tasks.hf.token_store import open_store

KIND: Final = "AutoModelForCausalLM"

SMALL: Final = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
"""The model where none is given, a Llama of 0.66M parameters: a step takes tens of milliseconds on one core."""

DEFAULT_LENGTH: Final = 128
EVAL_TOKENS: Final = 4096
"""In one evaluation batch: with 128,000 ids its logits take 2 GB."""

CHARS_PER_TOKEN: Final = 4
"""Of English text in a vocabulary of some 50,000 pieces: text without rows is cut into blocks of about a row."""


class HFLanguageModel:
    """A causal language model of transformers.

    `model` is a folder with weights, a name of the hub, or a config.json to begin from (None: a small Llama). `data` is
    a .jsonl, .parquet or text file, or a folder of such. TaskError, in one line, on any that cannot be.
    """

    name = "hf-lm"
    metric = "nats per token"
    units: ClassVar[Mapping[str, str]] = {"bits per byte": "bits", "own shard": "nats per token"}
    keeps_dtypes = True

    def __init__(
        self,
        model: Annotated[
            str | None,
            "A folder with weights, a name of the hub (user/name@revision), or a config.json; none: a small Llama.",
        ] = None,
        tokenizer: Annotated[str | None, "A folder, a tokenizer.json, or bytes; none: the model folder's."] = None,
        data: str | Path | None = None,
        length: Annotated[int | None, "Tokens that the model sees in an example."] = None,
        packing: Annotated[bool, "Whether documents follow each other in a row, or each has rows of its own."] = True,
        chat_template: Annotated[
            str | None, "A file with the template of conversations; none: the tokenizer's."
        ] = None,
        stream: Annotated[
            int | None,
            "Rows of the data that are held at a time, read by datasets in streaming; none: all of a folder.",
        ] = None,
        stream_steps: Annotated[int | None, "Steps on these rows before the next ones; none: 1000."] = None,
        split: Annotated[str | None, "Of streamed data; none: train."] = None,
        subset: Annotated[str | None, "Of a streamed dataset that has several."] = None,
        column: Annotated[str | None, "Of streamed data, with text or messages; none: of that name."] = None,
        lora: LoraRank = None,
        lora_alpha: LoraAlpha = None,
        lora_targets: LoraTargets = None,
        freeze_a: FreezeA = False,
        dtype: BaseDtype = "fp32",
        load_in_4bit: FourBit = False,
    ) -> None:
        folder = None if model is None else place_of(str(model))
        self.encoder = open_encoder(
            tokenizer, folder if folder is None or folder.is_dir() else folder.parent, chat_template
        )
        self.length = DEFAULT_LENGTH if length is None else length
        base = _small(self.encoder.vocabulary, self.length) if model is None else open_base(str(model), KIND)
        _check_fits(base.config, self.encoder.vocabulary, self.length)
        self.built = built_model(
            base,
            lora=lora,
            lora_alpha=lora_alpha,
            lora_targets=lora_targets,
            freeze_a=freeze_a,
            dtype=dtype,
            load_in_4bit=load_in_4bit,
        )
        padding = self.encoder.tokenizer.pad_token_id
        rows = RowConfig(length=self.length, packing=packing, padding=padding or 0)
        source = stream_source(
            data, stream=stream, stream_steps=stream_steps, split=split, subset=subset, column=column
        )
        self.split: TokenSplit | StreamedSplit
        if source is None:
            block_chars = max(LEAST_BLOCK_CHARS, CHARS_PER_TOKEN * self.length)
            self.split = TokenSplit(open_store(data, self.encoder, block_chars=block_chars), rows)
        else:
            config = StreamConfig(
                rows=ROWS if stream is None else stream, steps=STEPS if stream_steps is None else stream_steps
            )
            self.split = StreamedSplit(source, config, self.encoder, rows)
        self.store = self.split.store

    def build_model(self) -> nn.Module:
        """Return the model, read from its folder or drawn from torch's global generator."""
        return self.built.build()

    def identity(self, model: nn.Module) -> bytes:
        """Return what members must have alike and what does not travel: vocabulary, configuration, frozen weights."""
        return self.encoder.digest + self.built.identity(model)

    def train_batch(self, step: int, *, seed: int, shard: Shard, size: int) -> Batch:
        """`size` rows of the shard: inputs and targets, each int64 (size, length). Each row once an epoch."""
        return self.split.draw(step, seed=seed, shard=shard, size=size)

    def example_count(self, shard: Shard) -> int:
        """Return how many rows the shard has. TaskError for streamed data, whose number is not known."""
        return len(self._held().rows(shard))

    def examples_at(self, shard: Shard, numbers: Sequence[int]) -> Batch:
        """Return these rows of the shard: inputs and targets, each int64 (n, length). The last target of a row, which
        is the first input of the next one, is left out: no token is in two examples."""
        inputs_bt, targets_bt = self._held().rows(shard).batch(np.array(numbers, np.int64))
        targets_bt[:, -1] = NOT_COUNTED
        return inputs_bt, targets_bt

    def _held(self) -> TokenSplit:
        if isinstance(self.split, TokenSplit):
            return self.split
        raise TaskError("hf-lm cannot count the examples of streamed data: leave task.stream out")

    def eval_batches(self, limit: int) -> list[Batch]:
        """Up to `limit` fixed rows of the examples that are held out for all."""
        return self._batches(self.split.held_out, limit)

    def shard_eval_batches(self, shard: Shard, limit: int) -> list[Batch]:
        """Up to `limit` fixed rows of the examples that the shard holds out for itself; none where it has too few."""
        return self._batches(self.split.rows(shard, Part.OWN_HELD_OUT), limit)

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """Mean cross entropy over the targets that count, in nats per token."""
        inputs_bt, targets_bt = batch
        logits_btv = model(input_ids=inputs_bt, use_cache=False).logits
        total = functional.cross_entropy(
            logits_btv.flatten(0, 1).float(), targets_bt.flatten(), ignore_index=NOT_COUNTED, reduction="sum"
        )
        counted = (targets_bt != NOT_COUNTED).sum().clamp(min=1)
        return torch.div(total, counted)

    def derived_metrics(self, loss: float) -> dict[str, float]:
        """Return what follows from the held-out loss: bits per byte, which compares models of unlike vocabularies."""
        return {"bits per byte": loss / math.log(2) / self.store.bytes_per_token}

    def tokens(self, batch: Batch) -> int:
        """Tokens predicted."""
        return int((batch[1] != NOT_COUNTED).sum())

    @torch.no_grad()
    def generate(self, model: nn.Module, prompt: str, *, length: int, temperature: float, seed: int) -> str:
        """`prompt` and up to `length` tokens more; temperature 0 takes the likeliest. It ends early where the model
        ends its text, or has no place for more. TaskError on a negative temperature or length."""
        if temperature < 0 or length < 0:
            raise TaskError("temperature and length must not be negative")
        limit = getattr(self.built.base.config, "max_position_embeddings", None) or self.length
        ids = self.encoder.prompt(prompt)[-(limit - 1) :]
        count = min(length, limit - len(ids))
        if count < 1:
            return prompt
        inputs = torch.tensor([ids], device=next(model.parameters()).device)
        choice: dict[str, Any] = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
        options = require("transformers").GenerationConfig(
            max_new_tokens=count,
            eos_token_id=self.encoder.end,
            pad_token_id=self.encoder.tokenizer.pad_token_id,
            **(choice if temperature else {"do_sample": False}),
        )
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            made = model.generate(  # type: ignore[operator]  # of transformers' models, which have no types
                input_ids=inputs, attention_mask=torch.ones_like(inputs), generation_config=options
            )
        return prompt + self.encoder.decode(made[0, len(ids) :].tolist())

    def save(self, model: nn.Module, folder: Path, *, merged: bool) -> None:
        """Write configuration, weights and tokenizer; of adapters without `merged` these alone."""
        save_pretrained(model, self.built, folder, merged=merged)
        self.encoder.save(folder)

    def without_adapters(self, model: nn.Module) -> nn.Module:
        """Return the model with the adapters' products added to its weights."""
        return merged_model(model, self.built)

    def _batches(self, rows: TokenRows, limit: int) -> list[Batch]:
        chosen = self.split.spread(rows, limit)
        at_once = max(1, EVAL_TOKENS // self.length)
        return [rows.batch(chosen[at : at + at_once]) for at in range(0, len(chosen), at_once)]


def _small(vocabulary: int, length: int) -> BaseModel:
    config = require("transformers").LlamaConfig(
        vocab_size=vocabulary, max_position_embeddings=max(256, length), **SMALL
    )
    return BaseModel(kind=KIND, config=config, folder=None)


def _check_fits(config: Any, vocabulary: int, length: int) -> None:
    if not isinstance(getattr(config, "vocab_size", None), int):
        raise TaskError(f"a model of the kind {config.model_type} has no vocabulary: give a causal language model")
    most = getattr(config, "max_position_embeddings", None)
    if length < 1 or (most is not None and length > most):
        raise TaskError(f"length must be between 1 and the model's {most} positions, not {length}")
    if config.vocab_size < vocabulary:
        raise TaskError(
            f"the model has {config.vocab_size} ids and the tokenizer {vocabulary}: give the model's own tokenizer"
        )
