"""The digits at a set pace, by nodes that do what a test tells them: hang, give NaN, or hang while they evaluate.

A node's mood is what the file `moods`/PID says; without that file it is well. A mood can be taken back at any time.
"""

import os
import time
from pathlib import Path

import paced_digits
import torch
from torch import nn

from p2ptrain.tasks import Batch

HANGS, HANGS_EVALUATING, NO_NUMBERS = "hangs", "hangs evaluating", "no numbers"
LOOK_EVERY_S = 0.05


class MoodyDigits(paced_digits.PacedDigits):
    """`step_s`: the least time of a training step. `moods`: the folder."""

    def __init__(self, step_s: float, moods: str) -> None:
        super().__init__(step_s)
        self._file = Path(moods, str(os.getpid()))

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        while self._mood() == (HANGS if model.training else HANGS_EVALUATING):
            time.sleep(LOOK_EVERY_S)
        loss = super().loss(model, batch)
        return loss * torch.nan if model.training and self._mood() == NO_NUMBERS else loss

    def _mood(self) -> str:
        try:
            return self._file.read_text()
        except FileNotFoundError:
            return ""


def create(moods: str, step_s: float = 0.02) -> MoodyDigits:
    return MoodyDigits(step_s, moods)
