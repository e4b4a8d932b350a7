"""A GPT over bytes: pre-norm LayerNorm, rotary positions, causal attention, squared-ReLU MLP, head tied to the
embedding.

Squared ReLU (Primer, 2109.08668) is 0.04 nats per byte better than GELU after 1,200 steps of nano, and no slower.
No dropout (runs here see each byte a few times at most, and a step stays a function of its arguments), no biases, no
state but parameters. Shapes: B batch, T time, D width, H heads, K head width.
"""

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

VOCABULARY = 256
"""Every byte is a token."""

ROPE_BASE = 10_000.0
"""RoFormer's base (2104.09864): the slowest pair turns once in 63k positions, beyond every context here."""

INIT_STD = 0.02
"""GPT-2's; the two projections into the residual stream divide it by sqrt(2 * layers), also as GPT-2 does."""


@dataclass(frozen=True, kw_only=True)
class GPTSize:
    """Width, depth, heads, and the context that a model of that size is worth feeding."""

    width: int
    layers: int
    heads: int
    context: int


SIZES = {
    "pico": GPTSize(width=32, layers=2, heads=1, context=64),  # 33k parameters: hundreds of runs, to compare methods
    "nano": GPTSize(width=96, layers=4, heads=3, context=64),  # 0.47M parameters: a step takes tens of ms on one core
    "micro": GPTSize(width=256, layers=4, heads=8, context=64),  # 3.2M: a few cores
    "small": GPTSize(width=512, layers=8, heads=8, context=256),  # 25M: any GPU
    "base": GPTSize(width=896, layers=13, heads=14, context=512),  # 125M: a GPU of 8 GB and more
}
"""Head widths are 32 on CPUs and 64 on GPUs, whose attention kernels are made for it."""


class ByteGPT(nn.Module):
    """Bytes (B, T) int64 to logits (B, T, 256), for any T: rotary positions are relative."""

    def __init__(self, size: GPTSize) -> None:
        super().__init__()
        self.size = size
        self.embedding: nn.Module = nn.Embedding(VOCABULARY, size.width)
        self.blocks = nn.ModuleList(Block(size) for _ in range(size.layers))
        self.norm = nn.LayerNorm(size.width, bias=False)
        self.turns = Turns(size.width // size.heads)
        self.head: nn.Module = TiedHead()
        self.pieces = 1
        """Into how many pieces, one for each rank, the sequence is cut between the matrices."""
        self._initialise(size.layers)

    def forward(self, tokens_bt: torch.Tensor) -> torch.Tensor:
        """Logits of the byte that follows each position."""
        cos_tk, sin_tk = self.turns(tokens_bt.shape[1], tokens_bt.device)
        x_btd = self.embedding(tokens_bt)
        for block in self.blocks:
            x_btd = block(x_btd, cos_tk, sin_tk)
        return self.head(self.norm(x_btd), self.embedding.weight)  # type: ignore[no-any-return]

    def _initialise(self, layers: int) -> None:
        assert isinstance(self.embedding, nn.Embedding)
        nn.init.normal_(self.embedding.weight, std=INIT_STD)
        for name, parameter in self.blocks.named_parameters():
            if parameter.ndim == 2:
                into_residual = name.endswith(("project.weight", "down.weight"))
                nn.init.normal_(parameter, std=INIT_STD / (2 * layers) ** 0.5 if into_residual else INIT_STD)


class TiedHead(nn.Module):
    """Logits by the embedding's own matrix."""

    def forward(self, x_btd: torch.Tensor, weight_vd: torch.Tensor) -> torch.Tensor:
        """(B, T, D) to (B, T, V)."""
        return functional.linear(x_btd, weight_vd)


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)). A rank that has some of the heads alone computes those."""

    def __init__(self, size: GPTSize) -> None:
        super().__init__()
        self.head_width = size.width // size.heads
        self.attention_norm = nn.LayerNorm(size.width, bias=False)
        self.qkv: nn.Module = nn.Linear(size.width, 3 * size.width, bias=False)
        self.project = nn.Linear(size.width, size.width, bias=False)
        self.mlp_norm = nn.LayerNorm(size.width, bias=False)
        self.up = nn.Linear(size.width, 4 * size.width, bias=False)
        self.down = nn.Linear(4 * size.width, size.width, bias=False)

    def forward(self, x_btd: torch.Tensor, cos_tk: torch.Tensor, sin_tk: torch.Tensor) -> torch.Tensor:
        """(B, T, D) to (B, T, D)."""
        x_btd = x_btd + self._attend(self.attention_norm(x_btd), cos_tk, sin_tk)
        up = self.up(self.mlp_norm(x_btd))
        # relu(u) * u is relu(u)^2 with a backward pass of fewer temporaries: several times as fast on a CPU.
        return x_btd + self.down(functional.relu(up) * up)  # type: ignore[no-any-return]

    def _attend(self, x_btd: torch.Tensor, cos_tk: torch.Tensor, sin_tk: torch.Tensor) -> torch.Tensor:
        qkv = self.qkv(x_btd)
        b, t, _ = qkv.shape
        q, k, v = qkv.view(b, t, 3, -1, self.head_width).permute(2, 0, 3, 1, 4)  # each (B, H, T, K)
        q, k = rotate(q, cos_tk, sin_tk), rotate(k, cos_tk, sin_tk)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.project(mixed.transpose(1, 2).reshape(b, t, -1))  # type: ignore[no-any-return]


class Turns(nn.Module):
    """The rotary angles' cosines and sines, kept for the last length and device: a plain cache, never a parameter."""

    def __init__(self, head_width: int) -> None:
        super().__init__()
        self.head_width = head_width
        self._cached: tuple[torch.Tensor, torch.Tensor] | None = None

    def forward(self, length: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """cos and sin, each fp32 (T, K/2)."""
        cached = self._cached
        if cached is None or cached[0].shape[0] != length or cached[0].device != device:
            cached = self._cached = self._compute(length, device)
        return cached

    def _compute(self, length: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        half = self.head_width // 2
        rates = ROPE_BASE ** (-torch.arange(half, device=device, dtype=torch.float32) / half)
        angles = torch.outer(torch.arange(length, device=device, dtype=torch.float32), rates)
        return angles.cos(), angles.sin()


def rotate(x_bhtk: torch.Tensor, cos_tk: torch.Tensor, sin_tk: torch.Tensor) -> torch.Tensor:
    """Turn each pair (i, i + K/2) of the head by its position's angle (RoPE, 2104.09864). Keeps the dtype."""
    first, second = x_bhtk.chunk(2, dim=-1)
    turned = torch.cat((first * cos_tk - second * sin_tk, first * sin_tk + second * cos_tk), dim=-1)
    return turned.to(x_bhtk.dtype)
