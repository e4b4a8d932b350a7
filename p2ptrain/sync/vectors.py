"""Flat models as exact bytes and back, with the checks that everything from outside must pass."""

from collections.abc import Iterator
from typing import Final, Literal, Protocol

import numpy as np
import numpy.typing as npt
import torch

from p2ptrain.compress.base import PayloadError
from p2ptrain.compress.blocks import Floats
from p2ptrain.compress.by_parts import cut
from p2ptrain.saved.filed_vector import FiledVector, Raw

Precision = Literal["fp32", "bf16"]

Vector = torch.Tensor | FiledVector
"""An estimate (d,), fp32 or bf16, in memory or in a file."""

DTYPES: Final = {"fp32": torch.float32, "bf16": torch.bfloat16}
"""What estimates are held in, by the names of the setting `sync.estimates`."""
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
    return low.item() >= -LARGEST and high.item() <= LARGEST


class ByteSource(Protocol):
    """Bytes that are read by slices: `bytes`, or what lies in a file."""

    def __len__(self) -> int:
        """Return how many bytes there are."""

    def __getitem__(self, part: slice, /) -> bytes | memoryview:
        """Return the bytes of a slice with explicit start and stop."""


def values_of(x_d: Vector, part: slice) -> Floats:
    """Return a part of an estimate (d,) as fp32: a view where it is fp32 in memory, else a copy.

    In NumPy, which starts no threads within ours, and by whole numbers: the same bits on every machine.
    """
    if isinstance(x_d, torch.Tensor) and x_d.dtype == torch.float32:  # nearly always: nothing more is asked of it
        return x_d.numpy()[part]
    raw_p = x_d.read(part) if isinstance(x_d, FiledVector) else raw_of(x_d)[part]
    if x_d.dtype == torch.float32:
        return raw_p
    return (raw_p.astype(np.uint32) << np.uint32(16)).view(np.float32)


def set_values(x_d: Vector, part: slice, value_p: Floats) -> None:
    """Set a part of an estimate (d,) to finite fp32 values: as they are, or rounded to the nearest bf16, ties to even.
    Authors and followers both do this, so that they hold the same bits. `value_p` may be overwritten."""
    raw_p: Raw = value_p
    if x_d.dtype == torch.bfloat16:
        bits_p = value_p.view(np.uint32)
        bits_p += (bits_p >> np.uint32(16) & np.uint32(1)) + np.uint32(0x7FFF)
        raw_p = (bits_p >> np.uint32(16)).astype(np.uint16)
    set_raw(x_d, part, raw_p)


def set_raw(x_d: Vector, part: slice, raw_p: Raw) -> None:
    """Set a part of an estimate (d,) to values as it stores them."""
    if isinstance(x_d, FiledVector):
        x_d.write(part, raw_p)
    else:
        raw_of(x_d)[part] = raw_p


def whole(x_d: Vector) -> torch.Tensor:
    """Return an estimate as a tensor (d,) that is only read: itself, or its file, mapped."""
    return x_d.mapped() if isinstance(x_d, FiledVector) else x_d


def raw_of(x_d: torch.Tensor) -> Raw:
    """Return the values of a vector (d,) as they are stored, a view: floats, or the bits of bf16."""
    return x_d.numpy() if x_d.dtype == torch.float32 else bits_of(x_d)


def bits_of(x_d: torch.Tensor) -> npt.NDArray[np.uint16]:
    """Return the bits of a bf16 vector (d,), a view."""
    return x_d.view(torch.int16).numpy().view(np.uint16)


def rounded(x_d: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return `x_d` fp32 (d,) as an estimate of this type holds it: itself where that is fp32."""
    if x_d.dtype == dtype:
        return x_d
    held_d = torch.empty(x_d.numel(), dtype=dtype)
    for part in cut(x_d.numel()):
        set_values(held_d, part, values_of(x_d, part).copy())
    return held_d


def view_of(x_d: torch.Tensor) -> memoryview:
    """Return the bytes of an fp32 or bf16 vector (d,), little-endian, with no copy where the machine is."""
    array = raw_of(x_d)
    little = array.astype(array.dtype.newbyteorder("<"), copy=False)
    return little.view(np.uint8).data


def to_bytes(x_d: torch.Tensor) -> bytes:
    """fp32 or bf16, little-endian."""
    return bytes(view_of(x_d))


def from_bytes(raw: ByteSource, numel: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return the vector (numel,) that `to_bytes` made of one of this type, read by parts. Raises as `check_bytes`."""
    x_d = torch.empty(numel, dtype=dtype)
    fill(x_d, raw)
    return x_d


def fill(x_d: Vector, raw: ByteSource) -> None:
    """Set all values of a vector to those that `to_bytes` made of one of its type. Raises as `check_bytes`."""
    for at, part_d in _parts_of(raw, x_d.numel(), x_d.dtype):
        set_raw(x_d, at, raw_of(part_d))


def check_bytes(raw: ByteSource, numel: int, dtype: torch.dtype) -> None:
    """PayloadError `wrong_shape` or `nonfinite` for what cannot be such a vector of ours."""
    for _ in _parts_of(raw, numel, dtype):
        pass


def _parts_of(raw: ByteSource, numel: int, dtype: torch.dtype) -> Iterator[tuple[slice, torch.Tensor]]:
    size = dtype.itemsize
    if len(raw) != size * numel:
        raise PayloadError("wrong_shape", f"snapshot of {len(raw)} bytes where the model has {size * numel}")
    for at in cut(numel):
        data = np.frombuffer(raw[at.start * size : at.stop * size], dtype=f"<i{size}")
        part_d = torch.from_numpy(data.astype(f"i{size}")).view(dtype)
        if not is_sane(part_d):
            raise PayloadError("nonfinite", "a snapshot's value is not a sane number")
        yield at, part_d


def is_sane_part(value_p: Floats) -> bool:
    """`is_sane` for a part of a vector."""
    return bool(value_p.min() >= -LARGEST) and bool(value_p.max() <= LARGEST)
