"""Random-k: of every `every` parameters one, drawn alike by sender and receivers. A seed and the values travel.

    payload = every           2 bytes, little-endian, at least 1
              turn            2 bytes, 0 <= turn < every
              seed            8 bytes
              inner payload   of the ceil(d / every) values, in order

Parameter g * every + (draw_g + turn) mod every is the one of group g, draw_g = SplitMix64's output g from the seed as a
number below `every` (`splitmix.below`); in a last group of fewer parameters, the same with their number for `every`.

Places are thus uniform, as in random-k, and moreover without replacement: while `turn` goes from 0 to every - 1, each
parameter travels exactly once. Then the sender draws a new seed. The count of encodes is the sender's only memory.
"""

import struct
from typing import Annotated

import numpy as np
import numpy.typing as npt
import torch

from p2ptrain.compress.base import Compressor, PayloadError, State
from p2ptrain.compress.blocks import CHUNK_NUMEL, check_vector
from p2ptrain.compress.int8 import Int8
from p2ptrain.compress.pool import for_each
from p2ptrain.compress.splitmix import MASK, below, draws
from p2ptrain.compress.stage import Stage, counter, cut_header

HEADER = struct.Struct("<HHQ")
MAX_EVERY = (1 << 16) - 1
LEAST_DRAW = 0.95
"""A draw of some ten thousand values holds its share of a Gaussian's energy within 5%."""


class RandomK(Stage):
    """One value of each group of `every`, chosen at random, by the codec within: int8 unless the name says otherwise.

    Source: random-k with a memory, Stich et al. (1809.07599); a draw in strata, in turn.
    Guarantee: E ||error||^2 = (1 - delta / every) ||x||^2 for every vector, delta the inner codec's; for one draw only
    ||error||^2 <= ||x||^2. After `every` encodes everything has travelled once, whatever was drawn.
    Cost: 1/every of the inner codec's bits (0.50 with int8 and 16), and 12 bytes; three to four copies of the vector
    each way.
    """

    stage = "randomk"

    def __init__(
        self,
        inner: Compressor | None = None,
        *,
        every: Annotated[int, "Rounds in which each parameter travels once."] = 16,
        seed: Annotated[int, "Of the random choice."] = 0,
    ) -> None:
        super().__init__(inner or Int8())
        if not 1 <= every <= MAX_EVERY:
            raise ValueError(f"randomk: every must be in [1, {MAX_EVERY}], not {every}")
        if not 0 <= seed <= MASK:
            raise ValueError(f"randomk: seed must be in [0, 2^64), not {seed}")
        self.every = every
        self.seed = seed
        self._encodes = 0

    @property
    def contraction(self) -> float:
        """The share of the energy that a draw holds."""
        return LEAST_DRAW * self.inner.contraction / self.every

    @property
    def gamma(self) -> float:
        """Each estimate stands still for `every` rounds between two looks at it: that many steps must not overshoot."""
        return self.inner.gamma / self.every

    def encode(self, x_d: torch.Tensor) -> bytes:
        """Encode an fp32 vector (d,)."""
        value_d = check_vector(x_d)
        round_, turn = divmod(self._encodes, self.every)
        self._encodes += 1
        seed = int(draws(self.seed, round_, 1)[0])
        drawn_g = np.empty(_groups(value_d.size, self.every), dtype=np.float32)

        def draw(first: int) -> None:
            place_c = _places(self.every, turn, seed, first, value_d.size)
            np.take(value_d, place_c, out=drawn_g[first : first + place_c.size])

        for_each(draw, _chunks(value_d.size, self.every))
        if not (np.isfinite(value_d.min()) and np.isfinite(value_d.max())):
            drawn_g.fill(np.nan)  # what is not finite must be seen, drawn or not
        return HEADER.pack(self.every, turn, seed) + self.inner.encode(torch.from_numpy(drawn_g))

    def within(self, payload: bytes | memoryview) -> memoryview:
        """Return what follows the header."""
        return cut_header(payload, HEADER.size)[1]

    def gamma_of(self, payload: bytes | memoryview) -> float | None:
        """Return the inner codec's over the `every` that the payload names."""
        header, _ = cut_header(payload, HEADER.size)
        every, _, _ = HEADER.unpack(header)
        inner = super().gamma_of(payload)
        return None if inner is None else inner / every

    def decode(self, payload: bytes | memoryview, numel: int) -> torch.Tensor:
        """Decode to fp32 (numel,). Raises PayloadError."""
        header, rest = cut_header(payload, HEADER.size)
        every, turn, seed = HEADER.unpack(header)
        if turn >= every:
            raise PayloadError("malformed", f"turn {turn} of {every}")
        drawn_g = self.inner.decode(rest, _groups(numel, every)).numpy()
        out_d = np.zeros(numel, dtype=np.float32)

        def place(first: int) -> None:
            place_c = _places(every, turn, seed, first, numel)
            out_d[place_c] = drawn_g[first : first + place_c.size]

        for_each(place, _chunks(numel, every))
        return torch.from_numpy(out_d)

    def _own_state(self) -> State:
        return {"encodes": torch.tensor(self._encodes, device="cpu")}

    def _load_own(self, state: State) -> None:
        self._encodes = counter(state["encodes"])

    def _reset_own(self) -> None:
        self._encodes = 0


def _groups(numel: int, every: int) -> int:
    return -(-numel // every)


def _step(every: int) -> int:
    return max(1, CHUNK_NUMEL // every)


def _chunks(numel: int, every: int) -> range:
    """The first group of each chunk of work."""
    return range(0, _groups(numel, every), _step(every))


def _places(every: int, turn: int, seed: int, first: int, numel: int) -> npt.NDArray[np.int64]:
    """The places of a chunk's groups, from group `first` on."""
    count = min(_step(every), _groups(numel, every) - first)
    draw_c = draws(seed, first, count)
    pick_c = (below(draw_c, every) + np.uint64(turn)) % np.uint64(every)
    place_c = pick_c.astype(np.int64)
    place_c += np.arange(first * every, (first + count) * every, every)
    last = numel - (first + count - 1) * every
    if last < every:
        place_c[-1] = numel - last + (int(below(draw_c[-1:], last)[0]) + turn) % last
    return place_c
