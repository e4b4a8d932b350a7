"""The inner optimizer's moments as they travel: a share of each kind beside a model's pieces, in four bits a value.

    first    int4 of a share of 1 / first_period of all first moments, others in every round
    second   powers of two of a share of 1 / second_period of all second moments, at theirs

First moments are signed and about zero, as differences are. Second ones are above zero and of many orders of magnitude
in one block, where a step divides by their root: what matters is how far off a value is of itself, and none may become
0. So they travel as exponents: the nearest power of two below the block's largest, down to its 2^-15. A value is off by
2^0.5 at most, and a step by 19%, 10% in the root mean square; what is smaller than that is raised, which makes steps
shorter. Where models travel exactly, both go in bf16: fp32 would make packings half as long again as a model, which is
more than the network holds for an exchange of two.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch

from p2ptrain.compress.base import Compressor
from p2ptrain.compress.blocks import FLOAT_TINY, BlockCodec, Bytes, Floats
from p2ptrain.compress.float16 import Bf16
from p2ptrain.compress.int4 import Int4
from p2ptrain.inner.base import STEEPEST as STEEPEST
from p2ptrain.inner.base import MomentBuffer
from p2ptrain.inner.inner_state import BufferPart
from p2ptrain.sync.difference_packing import Rotation, Section

Buffers = Mapping[str, torch.Tensor]
"""Flat fp32 buffers by name."""

ROOT_HALF: Final = np.float32(0.5**0.5)
"""The mantissa at which an exponent is rounded up: half-way by ratio."""

SMALLEST: Final = 15
"""The largest exponent of four bits."""

LONGEST: Final = 2.0
"""How much longer than own first moments what came of all may be. A mean of vectors is no longer than they are on
average, and members' are much alike in length: twice leaves room for those that are not. Chosen."""

LARGEST: Final = 4.0
"""The same for second moments, which go as squares: of the largest own value of the share."""

TINY: Final = 1e-30
"""Stands for a norm that is 0."""


class PowersOfTwo(BlockCodec):
    """Values that are not negative, as the nearest powers of two below the largest of each 256 parameters.

    Guarantee: from 2^-15 of the block's largest on a value is off by a factor of 2^0.5 at most; smaller ones, and 0,
    become 2^-15 of it. None but those of a block of zeros becomes 0, and none negative.
    Cost: 4.125 bits a parameter.
    """

    name = "powers_of_two"
    contraction = 0.9
    gamma = 1.0
    block = 256

    def body_bytes(self, width: int) -> int:
        """Two values a byte."""
        return -(-width // 2)

    def encode_rows(self, x_rw: Floats, body_rb: Bytes) -> Floats:
        """Write the rows' exponents; return their largest values."""
        peak_r: Floats = x_rw.max(axis=1)
        usable_r = np.isfinite(peak_r) & (peak_r >= FLOAT_TINY)
        part_rw = np.zeros_like(x_rw)
        np.divide(x_rw, peak_r[:, None], out=part_rw, where=usable_r[:, None])
        mantissa_rw, exponent_rw = np.frexp(part_rw)
        code_rw = np.where(part_rw > 0, (mantissa_rw < ROOT_HALF) - exponent_rw, SMALLEST)
        code_rw = code_rw.clip(0, SMALLEST).astype(np.uint8)
        if code_rw.shape[1] % 2:
            code_rw = np.pad(code_rw, ((0, 0), (0, 1)))
        np.bitwise_or(code_rw[:, 0::2], code_rw[:, 1::2] << 4, out=body_rb)
        return np.where(peak_r < FLOAT_TINY, np.float32(0), peak_r)

    def decode_rows(self, scale_r: Floats, body_rb: Bytes, out_rw: Floats) -> None:
        """Decode exponents and largest values into `out_rw`."""
        width = out_rw.shape[1]
        exponent_rw = np.stack([body_rb & SMALLEST, body_rb >> 4], axis=2).reshape(len(body_rb), -1)[:, :width]
        np.ldexp(scale_r[:, None], -exponent_rw.astype(np.int32), out=out_rw)


class _EndToEnd:
    """Buffers of one order as one vector."""

    def __init__(self, buffers: Sequence[MomentBuffer]) -> None:
        self.numel = sum(buffer.numel for buffer in buffers)
        self._buffers = buffers

    def places(self, at: slice) -> Iterator[tuple[str, slice]]:
        """Yield the parts of buffers that a part of the vector is made of."""
        begins = 0
        for buffer in self._buffers:
            start, stop = max(at.start - begins, 0), min(at.stop - begins, buffer.numel)
            if start < stop:
                yield buffer.name, slice(start, stop)
            begins += buffer.numel


@dataclass(frozen=True)
class _Travelling:
    """Moments of one order, and how they travel."""

    vector: _EndToEnd
    rotation: Rotation
    section: Section


class MomentPacking:
    """Says which moments travel beside a piece of the model, and what becomes of own ones. Memory: none."""

    def __init__(
        self, buffers: Sequence[MomentBuffer], parameters: int, *, periods: tuple[int, int], fine: bool
    ) -> None:
        """`periods`: rounds in which all first, and all second moments have travelled. `fine`: in 16 bits."""
        self._buffers = {buffer.name: buffer for buffer in buffers}
        codecs: tuple[Compressor, Compressor] = (Bf16(), Bf16()) if fine else (Int4(), PowersOfTwo())
        self._orders: list[_Travelling] = []
        for order, period, codec in zip(("first", "second"), periods, codecs, strict=True):
            vector = _EndToEnd([buffer for buffer in buffers if buffer.moment.order == order])
            if vector.numel:
                rotation = Rotation(vector.numel, parameters, period)
                self._orders.append(_Travelling(vector, rotation, Section(codec, rotation.count)))

    @property
    def sections(self) -> list[Section]:
        """Return what travels in a piece beside the model."""
        return [each.section for each in self._orders]

    def check(self, own: Buffers) -> None:
        """ValueError unless these are all of the moments, and finite."""
        if {name: value.numel() for name, value in own.items()} != {it.name: it.numel for it in self._buffers.values()}:
            raise ValueError("the optimizer's moments are not those of this model")
        if not all(bool(torch.stack(value.aminmax()).isfinite().all()) for value in own.values()):  # NaN wins either
            raise ValueError("the optimizer's moments are not finite: the training diverged")

    def read(self, own: Buffers, piece: slice, round: int) -> torch.Tensor:
        """Return what of own moments travels beside a piece of the model."""
        return torch.cat([own[name][at] for each in self._orders for name, at in self._places(each, piece, round)])

    def take_(
        self, own: dict[str, torch.Tensor], means: Sequence[torch.Tensor], piece: slice, round: int, *, members: int
    ) -> list[BufferPart]:
        """Set own moments to what came of so many members', within bounds, and return what was set. Second ones first,
        as they bound the others."""
        spread = math.sqrt(members)
        """The members' mean second moment is at least 1/k of own one, so that averaging makes a first moment at most
        the root of k times as large over its root: no honest owner says more."""
        taken = []
        for each, mean_p in reversed(list(zip(self._orders, means, strict=True))):
            places = list(self._places(each, piece, round))
            values = torch.split(mean_p, [at.stop - at.start for _, at in places])
            for (name, at), value_p in zip(places, values, strict=True):
                own[name][at] = self._bounded(name, at, value_p, own, spread)
                taken.append(BufferPart(name, at, own[name][at].clone(), members))
        return taken

    def _places(self, each: _Travelling, piece: slice, round: int) -> Iterator[tuple[str, slice]]:
        return each.vector.places(each.rotation.at(piece, round))

    def _bounded(self, name: str, at: slice, value_p: torch.Tensor, own: Buffers, spread: float) -> torch.Tensor:
        """What own moments may become, whatever the owner of a part says: a first one is at most its
        `steepest` times `spread` over the root of the second one that it is divided by."""
        moment, own_p = self._buffers[name].moment, own[name][at]
        if moment.order == "second":
            value_p = value_p.clamp(max=LARGEST * float(own_p.max()))
            for it in self._buffers.values():
                if it.moment.scaled_by == name:
                    least_p = (own[it.name][at] / (it.moment.steepest * spread)).square_()
                    value_p = torch.maximum(value_p, least_p)
            return value_p
        if moment.scaled_by:
            most_p = own[moment.scaled_by][at].clamp(min=0).sqrt() * (moment.steepest * spread)
            return torch.minimum(torch.maximum(value_p, -most_p), most_p)
        return value_p * min(1.0, LONGEST * float(own_p.norm()) / max(float(value_p.norm()), TINY))
