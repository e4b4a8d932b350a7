"""A slice of all of a node's vectors, and what is done to it: one process's share of a `SlicedAveraging`.

It is a `ModelAveraging` for as many parameters as the slice has. Besides, it holds the slices of vectors that the
runtime speaks of by name: the model after a round's steps, and what corrects it.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
import torch

from p2ptrain.compress.base import PayloadError
from p2ptrain.compress.blocks import Floats
from p2ptrain.sync import build
from p2ptrain.sync.base import Message
from p2ptrain.sync.decoding import Move
from p2ptrain.sync.model_averaging import ModelAveraging
from p2ptrain.sync.sync_config import SyncConfig
from p2ptrain.sync.vectors import check_model, is_sane_part, set_values, values_of, view_of, whole

THETA: Final = "theta"
"""The model after a round's steps."""
CORRECTION: Final = "correction"
ANCHOR: Final = "anchor"
PUBLIC: Final = "public"
GENESIS: Final = "genesis"
BASE: Final = "base"
"""A neighbour's snapshot, as it comes in."""
ESTIMATE: Final = "estimate:"
STATE: Final = "state:"
"""Before the names of `state_dict`."""

Refusal = tuple[str, str]
"""Reason and detail of a PayloadError."""


class SliceStart(NamedTuple):
    """Where the strategy of a slice begins."""

    numel: int
    """Of the whole model."""
    genesis: str
    """The name of the vector that it takes."""


class ClosedSlice(NamedTuple):
    """What a slice's strategy says of a round that it has closed."""

    members: int
    robust: bool
    consensus_distance: float


class ModelSlice:
    """The slice `at` of vectors (d,). Methods may be called from another process: arguments and results are plain."""

    def __init__(self, at: slice) -> None:
        self.at = at
        self.numel = at.stop - at.start
        self._held: dict[str, torch.Tensor] = {}
        self._strategy: ModelAveraging | None = None
        self._moves: dict[str, Move] = {}
        """By neighbour, what a payload does that was found good."""
        self._steps: dict[str, list[tuple[int, Floats]]] = {}
        """By neighbour, what of a payload was decoded elsewhere."""

    @property
    def nbytes(self) -> int:
        """How many bytes of vectors are held."""
        vectors = dict(self._held)
        if self._strategy is not None:
            known = self._strategy.known
            vectors |= {STATE + name: value for name, value in self._strategy.state_dict().items()}
            vectors |= {ESTIMATE + peer: whole(model_d) for peer, model_d in known.models.items()}
            vectors |= {PUBLIC: self._strategy.public_d}
            vectors |= {GENESIS: known.genesis_d} if known.genesis_d is not None else {}
        return sum({each.data_ptr(): each.nbytes for each in vectors.values()}.values())

    def begin(self, config: SyncConfig, own: str, rounds: int | None, largest_gamma: float, start: SliceStart) -> None:
        """Begin a strategy. Raises ValueError."""
        strategy = build(config, self._held.pop(start.genesis), own, rounds=rounds, largest_gamma=largest_gamma)
        assert isinstance(strategy, ModelAveraging), "whole_because has seen to it"
        strategy.work_on_slice_of(start.numel)
        self._strategy, self._moves, self._steps = strategy, {}, {}

    def hold(self, name: str, x_p: torch.Tensor) -> None:
        """Hold `x_p` (p,) under a name."""
        self._held[name] = x_p

    def reserve(self, name: str, itemsize: int) -> None:
        """Hold a vector that is not set yet, of fp32 or bf16."""
        dtype = torch.float32 if itemsize == torch.float32.itemsize else torch.bfloat16
        self._held[name] = torch.empty(self.numel, dtype=dtype, device="cpu")

    def write(self, name: str, start: int, data: bytes) -> None:
        """Set bytes, little-endian, of a held vector."""
        raw = self._held[name].view(torch.uint8)
        raw[start : start + len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)

    def read(self, name: str, start: int, stop: int) -> bytes:
        """Return bytes, little-endian, of a vector."""
        return bytes(view_of(self.vector(name))[start:stop])

    def vector(self, name: str) -> torch.Tensor:
        """Return a vector (p,), to be read."""
        if name in self._held:
            return self._held[name]
        strategy, known = self._there, self._there.known
        if name == PUBLIC:
            return strategy.public_d
        if name == GENESIS and known.genesis_d is not None:
            return known.genesis_d
        if name.startswith(ESTIMATE):
            return whole(known.models[name.removeprefix(ESTIMATE)])
        return strategy.state_dict()[name.removeprefix(STATE)]

    def taken(self, name: str) -> torch.Tensor:
        """Return a vector (p,), and hold it no longer, where it is none of the strategy's."""
        return self._held.pop(name) if name in self._held else self.vector(name)

    def extremes(self, name: str) -> tuple[float, float]:
        """Return the least and the largest value of a vector; NaN where one is."""
        low, high = self.vector(name).aminmax()
        return low.item(), high.item()

    def fault(self) -> str:
        """Return why the model after a round's steps cannot be sent; "" where it can."""
        try:
            check_model(self._held[THETA])
        except ValueError as error:
            return str(error)
        return ""

    def encode(self, round: int) -> Message:
        """Return the message of this slice, and advance its public estimate. Raises ValueError."""
        return self._there.encode(self._held[THETA], round=round)

    def check(self, payload: bytes, peer: str, codec: str) -> Refusal | None:
        """Return why a neighbour's estimate cannot be advanced by a payload; None where it can: `advance` does so."""
        try:
            self._moves[peer] = self._there.known.checked(peer, codec, payload)
        except PayloadError as refused:
            return _told(refused)
        except Exception as error:  # the sender chose codec and bytes: no decoder error may cost us this slice
            return "malformed", f"{type(error).__name__} while decoding {codec}"
        return None

    def note_step(self, peer: str, start: int, data: bytes) -> None:
        """Keep decoded values of a payload, fp32, which belong from `start` on."""
        self._steps.setdefault(peer, []).append((start, np.frombuffer(data, dtype="<f4").astype(np.float32)))

    def check_steps(self, peer: str) -> Refusal | None:
        """Return why an estimate cannot be advanced by the values that were noted, as `check`."""
        steps = self._steps.pop(peer, [])
        try:
            estimate_p = self._there.known.own(peer)
        except PayloadError as refused:
            return _told(refused)
        runs: list[tuple[slice, Floats]] = []
        for start, step_r in steps:
            at = slice(start, start + step_r.size)
            np.add(values_of(estimate_p, at), step_r, out=step_r)
            if not is_sane_part(step_r):
                return "nonfinite", "the update would take the estimate out of all bounds"
            runs.append((at, step_r))

        def move() -> None:
            for at, value_r in runs:
                set_values(estimate_p, at, value_r)

        self._moves[peer] = move
        return None

    def advance(self, peer: str, gamma: float | None) -> None:
        """Advance a neighbour's estimate by what was found good, which came by a codec of this consensus step."""
        self._moves.pop(peer)()
        self._there.known.gammas[peer] = gamma

    def drop(self, peer: str) -> None:
        """Forget what was found good: it was not, in another slice."""
        self._moves.pop(peer, None)
        self._steps.pop(peer, None)

    def track(self, peer: str, is_given: bool) -> None:
        """Begin a neighbour's estimate at the genesis, or at what was written as BASE."""
        base_p = self._held.pop(BASE) if is_given else None
        self._there.track(peer, None if base_p is None else view_of(base_p))

    def forget(self, peer: str) -> None:
        """Drop a neighbour's estimate; no-op where there is none."""
        self._there.forget(peer)
        self.drop(peer)

    def aggregate(self, staleness: Mapping[str, int], round: int, shares: Mapping[str, float]) -> ClosedSlice:
        """Close a round over these neighbours: THETA becomes CORRECTION."""
        result = self._there.aggregate_(self._held.pop(THETA), staleness, round=round, shares=shares)
        self._held[CORRECTION] = result.correction_d
        return ClosedSlice(result.members, result.robust, result.consensus_distance)

    def adopt(self, staleness: Mapping[str, int]) -> None:
        """Make the neighbours' aggregate own anchor and base. ValueError without neighbours."""
        self._there.adopt(staleness)

    def drop_genesis(self) -> None:
        """Let go of the initial model: it is given as a base from now on."""
        self._there.drop_genesis()

    def layout(self) -> dict[str, torch.Tensor | None]:
        """Return the strategy's own state: None for each vector of which this is a slice."""
        state = self._there.state_dict()
        return {name: None if value.shape == (self.numel,) else value for name, value in state.items()}

    def load(self, common: Mapping[str, torch.Tensor], vectors: Sequence[str]) -> None:
        """Take up a state, of which these vectors were written under STATE and their names. Raises ValueError."""
        self._there.load_state_dict({**common, **{name: self._held.pop(STATE + name) for name in vectors}})

    @property
    def _there(self) -> ModelAveraging:
        assert self._strategy is not None, "it was begun"
        return self._strategy


def _told(refused: PayloadError) -> Refusal:
    return refused.reason, str(refused).removeprefix(f"{refused.reason}: ")
