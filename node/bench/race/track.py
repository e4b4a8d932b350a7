"""What a host leaves behind of its run: when each step was done, and models to be evaluated when the race is over.

Nobody evaluates on the clock: a host keeps a copy of its parameters (2 MB of a nano model, milliseconds), and all
contestants' copies are evaluated by the same code on the same held-out examples.
"""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import torch
from torch import nn
from torch.nn.utils import parameters_to_vector

LINES: Final = "track.jsonl"
UNLIKE: Final = 3
"""The first steps, which take another time than the others: buffers and buckets are made, and PowerSGD sends whole
gradients in the first two (ddp_host.FIRST_COMPRESSED)."""


@dataclass(frozen=True, kw_only=True)
class Mark:
    """So many steps were done at this time."""

    step: int
    at: float
    """Unix seconds."""
    model: Path | None = None
    """The parameters then, fp32 (d,) as numpy writes them; None: they were not kept."""


class TrackWriter:
    """Writes the marks of one host into its folder."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._kept = 0

    def step(self, step: int) -> None:
        """Note that `step` steps are done now."""
        self._write({"step": step, "at": time.time()})

    def keep(self, step: int, model: nn.Module) -> None:
        """Keep the model as it is now, after `step` steps. The mark comes when the file is whole, with the time of the
        call."""
        at, name = time.time(), f"{self._kept:05d}.npy"
        with torch.no_grad():
            np.save(self._folder / name, parameters_to_vector(model.parameters()).detach().cpu().numpy())
        self._kept += 1
        self._write({"step": step, "at": at, "model": name})

    def _write(self, mark: dict[str, object]) -> None:
        with (self._folder / LINES).open("a", encoding="utf-8") as file:  # 50 us, and no file is left open
            file.write(json.dumps(mark) + "\n")


def read_track(folder: Path) -> list[Mark]:
    """Return a host's marks so far, in order. A line that is being written is left for the next time."""
    path = folder / LINES
    if not path.is_file():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")[:-1]
    return [
        Mark(step=each["step"], at=each["at"], model=folder / each["model"] if "model" in each else None)
        for each in map(json.loads, lines)
    ]


@dataclass(frozen=True, kw_only=True)
class Speed:
    """How fast a host takes steps."""

    step_s: float
    """Seconds of a step, after the first few."""
    more_s: float
    """Seconds that the first few took beyond that; less than 0: they were quicker."""

    def seconds(self, steps: float) -> float:
        """Return the seconds from the start to the end of so many steps, more than the first few."""
        return self.more_s + steps * self.step_s


def speed(marks: Sequence[Mark], start: float) -> Speed | None:
    """Return the speed of a run that started at `start` (Unix seconds). None: fewer than two steps followed the first
    UNLIKE ones."""
    steps = [mark for mark in marks if mark.model is None and mark.step >= UNLIKE]
    if len(steps) < 3:
        return None
    first, last = steps[0], steps[-1]
    step_s = (last.at - first.at) / (last.step - first.step)
    return Speed(step_s=step_s, more_s=first.at - start - first.step * step_s)
