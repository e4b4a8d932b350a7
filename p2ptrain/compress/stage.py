"""What the stages share: a stage works on the vector, or on the bytes, and leaves the rest to the codec within.

A stage is any member whose factory takes `inner`. In a name it stands before what it wraps: `rotated+q2`.
"""

from abc import ABC, abstractmethod

import torch

from p2ptrain.compress.base import Compressor, PayloadError, SaysGamma, State, gamma_of, load_state, reset, state_of

INNER = "inner."
"""Before the names of the inner codec's memory."""


class Stage(ABC):
    """A compressor around another one, whose promises and memory are its own unless it says otherwise."""

    stage: str
    """The first part of its name."""

    def __init__(self, inner: Compressor) -> None:
        self.inner = inner

    @property
    def name(self) -> str:
        """All parts: `stage+inner`."""
        return f"{self.stage}+{self.inner.name}"

    @property
    def contraction(self) -> float:
        """That of the codec within."""
        return self.inner.contraction

    @property
    def gamma(self) -> float:
        """That of the codec within."""
        return self.inner.gamma

    def gamma_of(self, payload: bytes | memoryview) -> float | None:
        """Return that of the codec within, by its own payload where it is one that says it."""
        if not isinstance(self.inner, SaysGamma):
            return self.inner.gamma
        within = self.within(payload)
        return None if within is None else gamma_of(self.inner, within)

    def within(self, payload: bytes | memoryview) -> bytes | memoryview | None:
        """Return the payload of the codec within, or as much of it as its gamma needs; None: that takes decoding."""
        return None

    @abstractmethod
    def encode(self, x_d: torch.Tensor) -> bytes:
        """Encode an fp32 vector (d,)."""

    @abstractmethod
    def decode(self, payload: bytes | memoryview, numel: int) -> torch.Tensor:
        """Decode to fp32 (numel,). Raises PayloadError."""

    def state_dict(self) -> State:
        """Return the memory for a checkpoint: the stage's own, and that of the codec within."""
        return {**self._own_state(), **state_of(self.inner, INNER)}

    def load_state_dict(self, state: State) -> None:
        """Take up `state_dict`. ValueError when it is of another codec."""
        own = {name: value for name, value in state.items() if not name.startswith(INNER)}
        if own.keys() != self._own_state().keys():
            raise ValueError(f"this is no state of {self.name!r}: it holds {', '.join(sorted(state)) or 'nothing'}")
        load_state(self.inner, {name.removeprefix(INNER): state[name] for name in state.keys() - own.keys()})
        self._load_own(own)

    def reset(self) -> None:
        """Forget: the next payload is as the first one of a new encoder."""
        self._reset_own()
        reset(self.inner)

    def _own_state(self) -> State:
        return {}

    def _load_own(self, state: State) -> None:
        """Take up `_own_state`, whose names are right. ValueError when its values are not."""
        return

    def _reset_own(self) -> None:
        """Forget."""
        return


def cut_header(payload: bytes | memoryview, size: int) -> tuple[memoryview, memoryview]:
    """Return a payload's first `size` bytes, and the others. PayloadError `wrong_shape` when there are not so many."""
    view = memoryview(payload).cast("B")
    if view.nbytes < size:
        raise PayloadError("wrong_shape", f"payload of {view.nbytes} bytes without a header of {size}")
    return view[:size], view[size:]


def counter(state: torch.Tensor) -> int:
    """Return a count that was kept as int64 (). ValueError when it is none."""
    if state.shape != () or state.dtype != torch.int64 or int(state) < 0:
        raise ValueError(f"a count is a whole number >= 0, not {state.dtype} of shape {tuple(state.shape)}")
    return int(state)
