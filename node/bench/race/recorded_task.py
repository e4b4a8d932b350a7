"""The byte-lm task for a node that races: real data and a real loss, and models kept instead of evaluated on the clock.

A node evaluates beside its training, on cores that it shares here with the other hosts. So the held-out split is a few
windows, enough for the node to see that it has not diverged, and the model that it evaluates is kept.

The first batch that it is asked for once its node is up waits for the start of the race, as all contestants' first
steps do: nodes that meet do not do so at one moment. Before, the node tries the task, and none of that is on the track.
"""

import time
from pathlib import Path
from typing import Final

import torch
from torch import nn

from node.bench.race.track import TrackWriter
from node.events.event_types import Started
from node.events.log import read_events
from node.system.run_dir import EVENTS
from p2ptrain.tasks.base import Batch, Shard
from p2ptrain.tasks.byte_lm.task import ByteLM

NAME: Final = "node.bench.race.recorded_task:create"
READY: Final = "ready"
"""An empty file in the host's folder: its node stands at the start line."""
GO: Final = "go"
"""An empty file beside it: the race has started."""
LOOK_S: Final = 0.002
"""Seconds between two looks for it."""
PATIENCE_S: Final = 300.0
"""Seconds at the start line. The other hosts have 120 to come there (contestants.START_S)."""
WINDOWS: Final = 4
"""Held-out windows that a node itself evaluates: as many as it compares its neighbours' predictions on."""


class RecordedByteLM(ByteLM):
    """A byte-lm that tells the track of its folder what is done. `size` and `data` are byte-lm's own options."""

    def __init__(self, folder: Path, *, size: str, data: str | None) -> None:
        super().__init__(size=size, data=data)
        self._folder, self._track = folder, TrackWriter(folder)
        self._step: int | None = None
        """The newest that was begun since the start of the race; None: it has not started."""

    def train_batch(self, step: int, *, seed: int, shard: Shard, size: int) -> Batch:
        """Wait for the start, note that the steps before this one are done, and return the task's own batch."""
        batch = super().train_batch(step, seed=seed, shard=shard, size=size)
        if self._step is None and not self._is_up():
            return batch
        self._wait_for_start()
        self._step = step
        self._track.step(step)
        return batch

    def eval_batches(self, limit: int) -> list[Batch]:
        """Return the first few held-out windows, in one batch."""
        return super().eval_batches(min(limit, WINDOWS))

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """Return the task's own loss, and keep a model that is being evaluated."""
        if not model.training and self._step is not None:
            self._track.keep(self._step, model)
        return super().loss(model, batch)

    def _is_up(self) -> bool:
        return any(isinstance(event, Started) for event in read_events(self._folder / EVENTS))

    def _wait_for_start(self) -> None:
        if self._step is not None:
            return
        (self._folder / READY).touch()
        deadline = time.monotonic() + PATIENCE_S
        while not (self._folder / GO).exists():
            if time.monotonic() > deadline:  # who runs the race was killed: no node may outlive it
                raise TimeoutError(f"the race has not started within {PATIENCE_S:.0f} s")
            time.sleep(LOOK_S)


def create(folder: str, size: str = "nano", data: str | None = None) -> RecordedByteLM:
    """Build the task of one host. TaskError as byte-lm's."""
    return RecordedByteLM(Path(folder), size=size, data=data)
