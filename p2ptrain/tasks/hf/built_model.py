"""What both tasks share: a base model, whole or frozen under adapters, and what members must agree on."""

import hashlib
from dataclasses import dataclass
from typing import Annotated, Final

import torch
from torch import nn

from p2ptrain.tasks.base import TaskError
from p2ptrain.tasks.hf.base_model import DIGEST_BYTES, DTYPES, BaseModel, digest_of_config
from p2ptrain.tasks.hf.lora import ALL_LINEAR, LoraOptions, adapter_size, add_adapter, frozen_digest

ADAPTED_ONLY: Final = "is for a frozen base model: give lora=RANK as well"

LoraRank = Annotated[int | None, "Rank of LoRA adapters; none: the whole model is trained."]
LoraAlpha = Annotated[float | None, "The adapters' product is added alpha / rank times; none: 2 rank."]
LoraTargets = Annotated[str | None, "Names of adapted layers, comma-separated; none: all matrices."]
FreezeA = Annotated[bool, "Whether only B of the adapters is trained (FFA-LoRA)."]
BaseDtype = Annotated[str, "Of a frozen base model: fp32 or bf16."]
FourBit = Annotated[bool, "Whether the frozen base model is held in 4 bits (bitsandbytes)."]
"""Options of both tasks, with what they say of themselves."""


@dataclass(frozen=True, kw_only=True)
class ModelSize:
    """How large a model is, counted without memory for it."""

    trained: int
    """Parameters."""
    frozen_bytes: int


@dataclass(frozen=True, kw_only=True)
class BuiltModel:
    """A base model and what is done with it. TaskError for options that contradict each other."""

    base: BaseModel
    lora: LoraOptions | None
    dtype: str = "fp32"
    four_bit: bool = False

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise TaskError(f"dtype must be {' or '.join(DTYPES)}, not {self.dtype!r}")
        if self.lora is None and self.dtype != "fp32":
            raise TaskError(f"dtype={self.dtype} {ADAPTED_ONLY}")
        if self.lora is None and self.four_bit:
            raise TaskError(f"load_in_4bit {ADAPTED_ONLY}")

    def build(self) -> nn.Module:
        """Return the model on the CPU; what is trained is fp32, from torch's global generator where it is drawn."""
        model = self.base.build(DTYPES[self.dtype], four_bit=self.four_bit)
        if self.lora is None:
            return model
        default = torch.get_default_dtype()
        torch.set_default_dtype(torch.float32)  # what peft makes for itself, before A is drawn
        try:
            return add_adapter(model, self.base.kind, self.lora)
        finally:
            torch.set_default_dtype(default)

    def size(self) -> ModelSize:
        """Return how large it is."""
        if self.lora is None:
            return ModelSize(trained=self.base.numel(), frozen_bytes=0)
        frozen_bytes = self.base.frozen_bytes(DTYPES[self.dtype], four_bit=self.four_bit)
        return ModelSize(trained=adapter_size(self.base, self.lora), frozen_bytes=frozen_bytes)

    def identity(self, model: nn.Module) -> bytes:
        """Return 32 bytes over what members must have alike and what does not travel: the configuration, and under
        adapters the weights of the base model."""
        digest = hashlib.blake2b(digest_of_config(self.base.config), digest_size=DIGEST_BYTES)
        if self.lora is not None:
            alpha = self.lora.alpha
            digest.update(f"lora:{alpha}:{self.lora.freeze_a}".encode() + frozen_digest(self.base, model))
        return digest.digest()


def built_model(
    base: BaseModel,
    *,
    lora: int | None,
    lora_alpha: float | None,
    lora_targets: str | None,
    freeze_a: bool,
    dtype: str,
    load_in_4bit: bool,
) -> BuiltModel:
    """Return the model that a task's options describe. TaskError for those that do not fit together."""
    adapter = None
    if lora is not None:
        adapter = LoraOptions(rank=lora, alpha=lora_alpha, targets=lora_targets or ALL_LINEAR, freeze_a=freeze_a)
    elif lora_alpha is not None or lora_targets is not None or freeze_a:
        raise TaskError("lora_alpha, lora_targets and freeze_a are for adapters: give lora=RANK as well")
    return BuiltModel(base=base, lora=adapter, dtype=dtype, four_bit=load_in_4bit)
