"""The digits at a set pace, with a DataLoader whose workers are forked from the process that trains.

The numbers of that process and of its workers are in the file `told`.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import paced_digits
from torch.utils.data import DataLoader

from p2ptrain.tasks import Batch


class LoadingDigits(paced_digits.PacedDigits):
    """What the workers load is not used: a batch depends on its number alone."""

    def __init__(self, told: str) -> None:
        super().__init__(0.02)
        self._told = Path(told)
        self._rows: Iterator[Any] | None = None

    def train_batch(self, step: int, **given: Any) -> Batch:
        if self._rows is None:
            loader: DataLoader[int] = DataLoader(range(1 << 20), num_workers=2)  # type: ignore[arg-type]
            self._rows = iter(loader)
            next(self._rows)
            pids = [os.getpid(), *(worker.pid for worker in self._rows._workers)]  # type: ignore[attr-defined]
            self._told.write_text(" ".join(map(str, pids)))
        return super().train_batch(step, **given)


def create(told: str) -> LoadingDigits:
    return LoadingDigits(told)
