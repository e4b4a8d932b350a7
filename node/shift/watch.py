"""Watches a node's own data for shift: one detector a signal, and a model that is kept to compare with.

    settle rounds ── the model is kept ── REFERENCE rounds say what is usual ── the detectors watch ── a shift
         ^                                                                                               │
         └───────────────────────────── everything is learned anew ──────────────────────────────────────┘

The kept model does not learn, so its loss changes only with the data. The loss of the model that is trained falls by
itself, and after a shift again: it would hide what it is to show.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch

from node.shift.base import ShiftDetector
from node.shift.moment_distance import MomentDistance
from node.shift.signal_stream import SignalStream
from p2ptrain.training.data_looks import DataLook

KEPT_MODEL: Final = "shift.kept"
"""Name of the kept model in a checkpoint."""


class ShiftWatch:
    """The detectors of one node. All of its state is numbers and one model."""

    def __init__(self, make: Callable[[], ShiftDetector], signals: Sequence[str], *, settle: int) -> None:
        self._settle = settle
        self._streams = {name: SignalStream(make, rises=name == "predictions") for name in signals}
        self._distance = MomentDistance()
        self.kept_d: torch.Tensor | None = None
        """The kept model with its local parameters, fp32; None: the rounds before it is kept are not over."""
        self._age = 0
        self.shifts = 0
        """How many shifts were noticed."""

    @property
    def signals(self) -> tuple[str, ...]:
        """Return the names of what is watched."""
        return tuple(self._streams)

    @property
    def deviations(self) -> dict[str, float]:
        """Return how far each signal's newest value is from what is usual, in standard deviations, where that is
        known."""
        found = {name: stream.deviation for name, stream in self._streams.items()}
        return {name: value for name, value in found.items() if value is not None}

    def settled(self, model_d: Callable[[], torch.Tensor]) -> bool:
        """Return whether the round that ends is one to look at data in. Call it once a round. `model_d` returns the
        model to keep, as a copy, at the end of the first rounds."""
        self._age += 1
        if self.kept_d is None and self._age > self._settle:
            self.kept_d = model_d()
        return self.kept_d is not None

    def add(self, look: DataLook | None, divergence: float | None) -> list[str]:
        """Take a round's look at own data with the kept model, and the divergence of predictions; None: there is none.
        Return the signals by which the data have shifted: then everything is learned anew."""
        values = {
            "loss": None if look is None else look.loss,
            "moments": None if look is None or "moments" not in self._streams else self._distance.add(look.moments_nk),
            "predictions": divergence,
        }
        shifted = [
            name for name, stream in self._streams.items() if (value := values[name]) is not None and stream.add(value)
        ]
        if shifted:
            self.shifts += 1
            self._begin()
        return shifted

    def state(self) -> dict[str, Any]:
        """Return everything but the kept model, as JSON."""
        return {
            "age": self._age,
            "shifts": self.shifts,
            "signals": {name: stream.state() for name, stream in self._streams.items()},
            "moments": self._distance.state(),
        }

    def load(self, state: Mapping[str, Any], kept_d: torch.Tensor | None) -> None:
        """Take up `state`, and the kept model. A signal that was not watched before begins anew. Raises ValueError for
        what is no state."""
        try:
            age, shifts = int(state["age"]), int(state["shifts"])
            signals = {str(name): [float(it) for it in values] for name, values in state["signals"].items()}
            rows = [[float(it) for it in row] for row in state["moments"]]
        except (KeyError, TypeError, AttributeError, OverflowError) as error:
            raise ValueError("the state of shift detectors is none") from error
        numbers = [*(it for values in signals.values() for it in values), *(it for row in rows for it in row)]
        if not all(map(math.isfinite, numbers)) or age < 0 or (kept_d is None and (rows or any(signals.values()))):
            raise ValueError("the state of shift detectors is none")
        self._age, self.shifts, self.kept_d = age, shifts, kept_d
        self._distance.load(rows)
        for name, stream in self._streams.items():
            stream.load(signals.get(name, ()))

    def _begin(self) -> None:
        self._age, self.kept_d = 0, None
        self._distance.begin()
        for stream in self._streams.values():
            stream.begin()
