"""Adaptive: as many bits as the link carries. One byte says which member follows.

    payload = code      1 byte: the member's place in CODES
              payload   of that member

`budget` says what the next payloads may weigh, and the finest rung of the ladder that fits is taken; if none does, the
coarsest. A node publishes one chain of updates for all of its neighbours, who all hold the same estimate of it: so the
budget is that of the slowest link which the round's quorum waits for, and not one for each neighbour.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch

from p2ptrain.compress.base import Compressor, PayloadError, gamma_of
from p2ptrain.compress.dense import Dense
from p2ptrain.compress.float16 import Bf16, Fp16
from p2ptrain.compress.int4 import Int4
from p2ptrain.compress.int8 import Int8
from p2ptrain.compress.q2 import LloydMax2Bit
from p2ptrain.compress.sign1 import ScaledSign
from p2ptrain.compress.stage import Stage, cut_header
from p2ptrain.compress.topk import TopK

CODES: tuple[type[Compressor], ...] = (Dense, Fp16, Bf16, Int8, Int4, LloydMax2Bit, ScaledSign, TopK)
"""By code. Part of the format: a new member is put at the end."""
CODE_BYTES = 1


@dataclass(frozen=True)
class Rung:
    """A member with its options. Its payloads' length must follow from the vector's, as that of all CODES does."""

    member: type[Compressor]
    options: Mapping[str, object] = field(default_factory=dict)

    @cached_property
    def codec(self) -> Compressor:
        """Built once."""
        return self.member(**self.options)

    @property
    def code(self) -> int:
        """What stands for the member in a payload. ValueError when nothing does."""
        return CODES.index(self.member)

    @property
    def label(self) -> str:
        """For the eye: `int4`, `topk 1/32`."""
        ratio = self.options.get("ratio")
        return self.codec.name + (f" 1/{1 / ratio:g}" if isinstance(ratio, float) else "")


LADDER = (
    Rung(Int8),
    Rung(Int4),
    Rung(LloydMax2Bit),
    Rung(ScaledSign),
    Rung(TopK, {"ratio": 1 / 32}),
    Rung(TopK, {"ratio": 1 / 128}),
)
"""Finest first: 8, 4, 2, 1, 0.6 and 0.16 bits a parameter. More than 8 bits would gain nothing in loss."""


class Adaptive:
    """The finest of `ladder` whose payload fits the budget; the finest of all while there is none.

    Source: none; the ladder is ours.
    Guarantee: that of the rung in use. A payload exceeds its budget only if the coarsest rung does.
    Cost: 1 byte a payload. After the budget shrinks, one encoding for each rung that is found too heavy, once: lengths
    are remembered.
    """

    name = "adaptive"

    def __init__(self, *, ladder: Sequence[Rung] = LADDER) -> None:
        if not ladder:
            raise ValueError("adaptive: a ladder has at least one rung")
        self.ladder = tuple(ladder)
        self._coded = [(rung.code, rung.codec) for rung in self.ladder]
        self._room = math.inf
        self._rung = 0
        self._numel = 0
        self._lengths: dict[int, int] = {}
        """By rung, for vectors of `_numel`."""

    @property
    def contraction(self) -> float:
        """That of the rung last used."""
        return self.ladder[self._rung].codec.contraction

    @property
    def gamma(self) -> float:
        """That of the rung last used."""
        return self.ladder[self._rung].codec.gamma

    def gamma_of(self, payload: bytes | memoryview) -> float | None:
        """Return that of the member that the payload names."""
        code, rest = cut_header(payload, CODE_BYTES)
        return gamma_of(CODES[code[0]](), rest)

    @property
    def rung(self) -> str:
        """The label of the rung last used; before that, of the finest."""
        return self.ladder[self._rung].label

    def budget(self, bytes_per_s: float, seconds: float) -> None:
        """Payloads from now on may weigh what the link carries in that time. ValueError unless both are above 0."""
        room = bytes_per_s * seconds
        if not (bytes_per_s > 0 and seconds > 0 and room >= 0):
            raise ValueError(f"a budget is above 0, not {bytes_per_s} bytes/s for {seconds} s")
        self._room = room

    def encode(self, x_d: torch.Tensor) -> bytes:
        """Encode an fp32 vector (d,)."""
        if x_d.numel() != self._numel:
            self._numel, self._lengths = x_d.numel(), {}
        for rung, (code, codec) in enumerate(self._coded):
            last = rung == len(self._coded) - 1
            if last or self._lengths.get(rung, 0) <= self._room:
                payload = bytes([code]) + codec.encode(x_d)
                self._lengths[rung] = len(payload)
                if last or len(payload) <= self._room:
                    break
        self._rung = rung
        return payload

    def decode(self, payload: bytes | memoryview, numel: int) -> torch.Tensor:
        """Decode to fp32 (numel,). Raises PayloadError."""
        code, rest = cut_header(payload, CODE_BYTES)
        if code[0] >= len(CODES):
            raise PayloadError("malformed", f"no member has the code {code[0]}")
        return CODES[code[0]]().decode(rest, numel)


def adaptive_in(codec: Compressor) -> Adaptive | None:
    """Return the adaptive member at the bottom of a composition, such as `lossless+adaptive`; None where another one
    is."""
    while isinstance(codec, Stage):
        codec = codec.inner
    return codec if isinstance(codec, Adaptive) else None
