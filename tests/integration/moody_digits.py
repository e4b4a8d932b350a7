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

HANGS, HANGS_EVALUATING, NO_NUMBERS_AND_HANGS = "hangs", "hangs evaluating", "no numbers, and hangs"
WITHOUT_NUMBERS = 41
"""Steps without a number before it hangs: with some twenty in a round, one round at least has no other."""
LOOK_EVERY_S = 0.05


class MoodyDigits(paced_digits.PacedDigits):
    """`step_s`: the least time of a training step. `moods`: the folder. `large`: a model of 38k parameters."""

    def __init__(self, step_s: float, moods: str, large: bool) -> None:
        super().__init__(step_s)
        self._large = large
        self._file = Path(moods, str(os.getpid()))
        self._without = 0

    def build_model(self) -> nn.Module:
        if not self._large:
            return super().build_model()
        return nn.Sequential(nn.Linear(64, 512), nn.GELU(), nn.Linear(512, 10))

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        while self._mood() == (HANGS if model.training else HANGS_EVALUATING):
            time.sleep(LOOK_EVERY_S)
        loss = super().loss(model, batch)
        if not model.training or self._mood() != NO_NUMBERS_AND_HANGS:
            return loss
        self._without += 1
        while self._without > WITHOUT_NUMBERS and self._mood() == NO_NUMBERS_AND_HANGS:
            time.sleep(LOOK_EVERY_S)
        return loss * torch.nan

    def _mood(self) -> str:
        try:
            return self._file.read_text()
        except FileNotFoundError:
            return ""


def create(moods: str, step_s: float = 0.02, large: bool = False) -> MoodyDigits:
    return MoodyDigits(step_s, moods, large)
