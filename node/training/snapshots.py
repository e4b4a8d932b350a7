"""The public model as bytes, for others: of a large one in a file, so that it is in memory once."""

from contextlib import suppress
from typing import Final

from gossip.blobs.blob import filed
from gossip.blobs.hashing_task import FILED_FROM
from gossip.core.api import BlobFile, NewFile
from p2ptrain.protocols import implements
from p2ptrain.sync import SyncStrategy
from p2ptrain.sync.base import InPlace

LARGE: Final = FILED_FROM
"""Bytes of a snapshot from which the node keeps what it can in files."""


class SnapshotCutter:
    """Cuts snapshots of a strategy. Call it under the strategy's lock, in the executor."""

    def __init__(self, strategy: SyncStrategy, new_file: NewFile | None) -> None:
        self._strategy = strategy
        self._new_file = new_file

    def cut(self) -> bytes | BlobFile:
        """Return the public model as it is now."""
        strategy = self._strategy
        if self._new_file is not None and isinstance(strategy, InPlace):
            view = strategy.snapshot_view()
            with suppress(OSError):  # then it is held in memory
                if len(view) >= LARGE:
                    return filed(view, self._new_file())
        return strategy.snapshot()

    def view(self) -> bytes | memoryview | BlobFile:
        """Return the public model, without a copy where that can be: valid until it moves."""
        view = self._strategy.snapshot_view() if implements(self._strategy, InPlace) else None
        return view if isinstance(view, memoryview) else self.cut()
