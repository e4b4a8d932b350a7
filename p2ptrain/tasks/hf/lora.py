"""LoRA (2106.09685): a frozen base model, and beside each of its matrices a product B A of two thin ones that train.

All members begin with the same A, drawn from the swarm's seed, and B = 0. Averaging A and B apart is not averaging
their product (2410.09432): `product_gap` measures the difference. `freeze_a` (FFA-LoRA, 2403.12313) keeps A as it was
drawn: then the mean of B is the mean of the products, and half of the bytes travel.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import nn

from p2ptrain.tasks.base import TaskError
from p2ptrain.tasks.hf.base_model import HEADS, BaseModel, digest_of_tensors, one_line, peft_quiet
from p2ptrain.tasks.hf.extras import require

ALL_LINEAR: Final = "all-linear"
"""Every matrix but the output layer's and the embeddings', as QLoRA has it (2305.14314)."""

ALPHA_PER_RANK: Final = 2.0
"""Of lora_alpha, where it is not given: the product is added with alpha / rank, so with 2 at any rank."""

MAX_RANK: Final = 1024
"""Larger ones train more parameters than the matrices have that they stand beside."""

_FACTOR: Final = re.compile(r"(?P<matrix>.+)\.lora_(?P<factor>[AB])\.(?:[^.]+\.)?weight")


@dataclass(frozen=True, kw_only=True)
class LoraOptions:
    """What adapters a base model gets. TaskError for a rank that cannot be."""

    rank: int
    alpha: float | None = None
    targets: str = ALL_LINEAR
    """ALL_LINEAR, or names of layers, comma-separated: q_proj,v_proj."""
    freeze_a: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.rank <= MAX_RANK:
            raise TaskError(f"lora must be a rank from 1 to {MAX_RANK}, not {self.rank}")
        if self.alpha is not None and not 0 < self.alpha < math.inf:
            raise TaskError(f"lora_alpha must be a positive number, not {self.alpha}")


def add_adapter(model: nn.Module, kind: str, options: LoraOptions) -> nn.Module:
    """Return `model`, frozen, with adapters: A fp32 from torch's global generator, B zero. The layer that classifies,
    where a model of that `kind` has one, is trained as a whole. TaskError when there is no layer of that name."""
    with peft_quiet(), torch.random.fork_rng(devices=[]):
        try:
            adapted: nn.Module = require("peft").get_peft_model(model, _peft_config(kind, options))
        except ValueError as error:  # peft's, for targets that the model does not have
            raise TaskError(f"lora_targets={options.targets!r}: {str(error).splitlines()[0]}") from error
    draw_a(adapted)
    for name, parameter in adapted.named_parameters():
        if options.freeze_a and ".lora_A." in name:
            parameter.requires_grad_(False)
    return adapted


@torch.no_grad()
def draw_a(model: nn.Module) -> None:
    """Set every A to Kaiming's uniform numbers (LoRA's own choice), drawn in fp64 in the order of the layers: the same
    on every machine, and for every type of the base model."""
    for name, parameter in model.named_parameters():
        if ".lora_A." in name:
            parameter.data = parameter.data.float()
            wide = torch.empty(parameter.shape, dtype=torch.float64)
            nn.init.kaiming_uniform_(wide, a=math.sqrt(5))
            parameter.copy_(wide)
        elif ".lora_B." in name:
            parameter.data = parameter.data.float()


def frozen_digest(base: BaseModel, model: nn.Module) -> bytes:
    """Return 32 bytes over what does not travel and must be alike: the base model, and A where it is frozen."""
    frozen = {name: each for name, each in model.named_parameters() if ".lora_A." in name and not each.requires_grad}
    base_bytes = base.digest(model)
    return digest_of_tensors({**frozen, "base": torch.frombuffer(bytearray(base_bytes), dtype=torch.uint8)})


def adapter_size(base: BaseModel, options: LoraOptions) -> int:
    """Return how many parameters travel, counted from the configuration, without memory for the model. TaskError where
    there is no layer of that name."""
    with one_line(f"lora_targets={options.targets!r}"), torch.device("meta"), peft_quiet():
        model = getattr(require("transformers"), base.kind).from_config(
            base.config, dtype=torch.bfloat16, trust_remote_code=False
        )
        adapted = require("peft").get_peft_model(model, _peft_config(base.kind, options), low_cpu_mem_usage=True)
    trained = {name: int(each.numel()) for name, each in adapted.named_parameters() if each.requires_grad}
    return sum(numel for name, numel in trained.items() if not (options.freeze_a and ".lora_A." in name))


@dataclass(frozen=True, kw_only=True)
class ProductGap:
    """How far the mean of the products is from the product of the means, over all adapted matrices (Frobenius)."""

    gap: float
    """||mean(B A) - mean(B) mean(A)||"""
    size: float
    """||mean(B A)||"""

    @property
    def share(self) -> float:
        """Of the mean update, what averaging the factors apart loses."""
        return self.gap / self.size if self.size else 0.0

    def words(self) -> str:
        """Return it for people."""
        return f"{100 * self.share:.2g}% of the mean update, ||mean(BA) - mean(B) mean(A)|| = {self.gap:.2g}"


@torch.no_grad()
def product_gap(models: Sequence[Mapping[str, torch.Tensor]]) -> ProductGap | None:
    """Return the gap between models' adapters, by the names of their parameters. None for fewer than two models, and
    where no pair of factors is among the names (no LoRA, or A is frozen and so the same: the gap is zero).

    mean(B A) - mean(B) mean(A) is the covariance of B and A over the models: no product as large as a matrix of the
    base model is ever formed.
    """
    pairs = list(_pairs(models[0])) if len(models) > 1 else []
    if not pairs:
        return None
    gap = size = 0.0
    for a, b in pairs:
        a_nrk = torch.stack([model[a].double() for model in models])
        b_nmr = torch.stack([model[b].double() for model in models])
        gap += _mean_product_norm2(b_nmr - b_nmr.mean(0), a_nrk - a_nrk.mean(0))
        size += _mean_product_norm2(b_nmr, a_nrk)
    return ProductGap(gap=math.sqrt(gap), size=math.sqrt(size))


def _mean_product_norm2(b_nmr: torch.Tensor, a_nrk: torch.Tensor) -> float:
    """||mean_n(B_n A_n)||^2: with all B side by side (m, nr) and all A stacked (nr, k) the sum is one product L R, and
    its squared norm the trace of (L'L)(R R'), matrices of nr by nr."""
    n = len(b_nmr)
    left = b_nmr.permute(1, 0, 2).flatten(1)
    right = a_nrk.flatten(0, 1)
    return max(0.0, float(((left.T @ left) * (right @ right.T)).sum())) / n**2


def _pairs(names: Mapping[str, torch.Tensor]) -> Iterator[tuple[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for name in names:
        factor = _FACTOR.fullmatch(name)
        if factor is not None:
            found.setdefault(factor["matrix"], {})[factor["factor"]] = name
    for factors in found.values():
        if {"A", "B"} <= factors.keys():
            yield factors["A"], factors["B"]


def _peft_config(kind: str, options: LoraOptions) -> Any:
    targets = options.targets
    head = HEADS.get(kind)
    return require("peft").LoraConfig(
        r=options.rank,
        lora_alpha=ALPHA_PER_RANK * options.rank if options.alpha is None else options.alpha,
        target_modules=targets if targets == ALL_LINEAR else [each.strip() for each in targets.split(",")],
        lora_dropout=0.0,
        task_type="CAUSAL_LM" if head is None else None,
        modules_to_save=None if head is None else [head],
    )
