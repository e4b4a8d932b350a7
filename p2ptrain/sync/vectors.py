"""Flat models as exact bytes and back, with the checks that everything from outside must pass."""

import numpy as np
import torch

from p2ptrain.compress.base import PayloadError

FP32_BYTES = 4
LARGEST = 2.0**40
"""No parameter of any model comes near 1e12; far beyond it sums of squares overflow fp32, and a liar's finite number
would make distances, and every metric made of them, infinite."""


def check_model(x_d: torch.Tensor) -> None:
    """ValueError unless `x_d` is a non-empty flat fp32 CPU vector with sane values."""
    if x_d.dim() != 1 or x_d.numel() == 0 or x_d.dtype != torch.float32 or x_d.device.type != "cpu":
        raise ValueError(f"a model is a flat fp32 CPU vector, not {tuple(x_d.shape)} {x_d.dtype} on {x_d.device}")
    if not is_sane(x_d):
        raise ValueError("the model's parameters are not finite: the training diverged (a lower learning rate helps)")


def is_sane(x_d: torch.Tensor) -> bool:
    """Return whether all values are finite and at most LARGEST in size; no temporary of size d."""
    low, high = x_d.aminmax()  # NaN wins either, and compares as false
    return bool(low >= -LARGEST) and bool(high <= LARGEST)


def to_bytes(x_d: torch.Tensor) -> bytes:
    """fp32 little-endian."""
    return x_d.numpy().astype("<f4", copy=False).tobytes()


def from_bytes(raw: bytes, numel: int) -> torch.Tensor:
    """fp32 (numel,) from `to_bytes`. PayloadError `wrong_shape` or `nonfinite`."""
    if len(raw) != FP32_BYTES * numel:
        raise PayloadError("wrong_shape", f"snapshot of {len(raw)} bytes where the model has {FP32_BYTES * numel}")
    x_d = torch.from_numpy(np.frombuffer(raw, dtype="<f4").astype(np.float32))
    if not is_sane(x_d):
        raise PayloadError("nonfinite", "a snapshot's value is not a sane number")
    return x_d
