"""The disk of a simulated node: it may be full, slow, or that of a process that is no more."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

from node.simulation.virtual_executor import KilledError
from node.training.checkpoint import Checkpoint, CheckpointStore


class VirtualDisk:
    """What a node's disk does now. It outlives the node's processes."""

    def __init__(self) -> None:
        self.full = False
        self.takes_s = 0.0


class VirtualCheckpointStore(CheckpointStore):
    """The checkpoints of one process, on a virtual disk. `owe` is told the seconds that writing takes."""

    def __init__(self, folder: Path, *, keep: int, disk: VirtualDisk, owe: Callable[[float], None]) -> None:
        super().__init__(folder, keep=keep)
        self._disk = disk
        self._owe = owe
        self._dead = False

    def die(self) -> None:
        """Write nothing any more."""
        self._dead = True

    def save(self, checkpoint: Checkpoint) -> Path:
        """Write a checkpoint. Raises OSError while the disk is full, KilledError once the process is no more."""
        if self._dead:
            raise KilledError
        self._owe(self._disk.takes_s)
        if self._disk.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().save(checkpoint)
