"""Warm-up: the first payloads whole, those after by the codec within: `warmup+sign1`.

    payload = kind            1 byte: 0 none, 1 fp16, 2 the codec within
              payload of that

The kind travels, so that a receiver need not count, and one that comes late reads what it gets.
"""

from typing import Annotated, Final

import torch

from p2ptrain.compress.base import Compressor, PayloadError, State, gamma_of
from p2ptrain.compress.dense import Dense
from p2ptrain.compress.float16 import Fp16
from p2ptrain.compress.sign1 import ScaledSign
from p2ptrain.compress.stage import Stage, counter, cut_header

WHOLE: Final[dict[str, int]] = {"none": 0, "fp16": 1}
INNER_KIND = 2


class Warmup(Stage):
    """`encodes` payloads by `whole` ("fp16" or "none"), then the codec within: sign1 unless the name says otherwise.

    Source: the schedule of 1-bit Adam (2102.02888): no compression while a model changes fastest. There, too, Adam's
    variance is frozen at the end of the warm-up; that belongs to the inner optimizer, and is not done here.
    Guarantee: that of the codec whose turn it is.
    Cost: 1 byte a payload; 16 bits a parameter while it lasts.
    """

    stage = "warmup"

    def __init__(
        self,
        inner: Compressor | None = None,
        *,
        encodes: Annotated[int, "Rounds in which the whole vector travels."] = 10,
        whole: Annotated[str, "What the whole vector travels as: fp16 or none, which is fp32."] = "fp16",
    ) -> None:
        super().__init__(inner or ScaledSign())
        if encodes < 0:
            raise ValueError(f"warmup: encodes must not be negative, not {encodes}")
        if whole not in WHOLE:
            raise ValueError(f"warmup: whole must be one of {', '.join(WHOLE)}, not {whole!r}")
        self.encodes = encodes
        self.whole = whole
        self._members: tuple[Compressor, ...] = (Dense(), Fp16(), self.inner)
        self._done = 0

    @property
    def contraction(self) -> float:
        """That of the codec whose turn it is."""
        return self._members[self._kind()].contraction

    @property
    def gamma(self) -> float:
        """That of the codec whose turn it is."""
        return self._members[self._kind()].gamma

    def gamma_of(self, payload: bytes | memoryview) -> float | None:
        """Return that of the codec that the payload names."""
        kind, rest = cut_header(payload, 1)
        return gamma_of(self._members[kind[0]], rest)

    def encode(self, x_d: torch.Tensor) -> bytes:
        """Encode an fp32 vector (d,)."""
        kind = self._kind()
        payload = bytes([kind]) + self._members[kind].encode(x_d)
        self._done += 1
        return payload

    def decode(self, payload: bytes | memoryview, numel: int) -> torch.Tensor:
        """Decode to fp32 (numel,). Raises PayloadError."""
        kind, rest = cut_header(payload, 1)
        if kind[0] >= len(self._members):
            raise PayloadError("malformed", f"a payload of kind {kind[0]}")
        return self._members[kind[0]].decode(rest, numel)

    def _kind(self) -> int:
        return WHOLE[self.whole] if self._done < self.encodes else INNER_KIND

    def _own_state(self) -> State:
        return {"done": torch.tensor(self._done, device="cpu")}

    def _load_own(self, state: State) -> None:
        self._done = counter(state["done"])

    def _reset_own(self) -> None:
        self._done = 0
