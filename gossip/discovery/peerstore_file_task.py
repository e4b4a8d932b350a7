"""The peerstore on disk: read at the start, written now and then when it has changed, and at the end.

It is written whole or not at all (`gossip/core/atomic_file.py`), in a worker thread: a sync waits for the disk, and the
event loop must not. A damaged file is reported, and the node starts with an empty peerstore.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import trio

from gossip.context import ServiceContext
from gossip.core.atomic_file import write_atomic
from gossip.core.envelope import Scope
from gossip.core.errors import LocalError
from gossip.discovery.peerstore import MAX_DUMP_BYTES, PeerStore

SAVE_EVERY_S: Final = 30.0
"""Seconds. The peerstore changes within seconds while a swarm gathers. A node that is killed then still knows its
bootstrap peers."""


def load_peerstore(path: Path, peerstore: PeerStore, scope: Scope) -> None:
    """Load the file, if there is one. Raises LocalError, which says what is wrong with it."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_DUMP_BYTES + 1)
        peerstore.recall(data, scope)
    except FileNotFoundError:
        return
    except OSError as error:
        raise LocalError(
            f"cannot read the address book {path}: {error.strerror}; starting with an empty one"
        ) from error
    except LocalError as error:
        raise LocalError(f"the address book {path} cannot be used: {error}; starting with an empty one") from error


def save_peerstore(path: Path, peerstore: PeerStore) -> None:
    """Write the file whole or not at all. Raises LocalError."""
    write_whole(path, peerstore.dump())


def write_whole(path: Path, data: bytes) -> None:
    """Write a peerstore whole or not at all. Raises LocalError."""
    try:
        write_atomic(path, data)
    except OSError as error:
        raise LocalError(f"cannot write the address book {path}: {error.strerror}") from error


class PeerStoreKeeper:
    """Keeps the file up to date while the node runs."""

    def __init__(self, context: ServiceContext, peerstore: PeerStore) -> None:
        self._context = context
        self._peerstore = peerstore
        self._path = context.config.address_book
        self._complained = False

    def load(self) -> None:
        """Load the file once, before any dial."""
        if self._path is not None:
            try:
                load_peerstore(self._path, self._peerstore, self._context.engine.scope)
            except LocalError as error:
                self._context.warn(str(error))

    async def run(self) -> None:
        """Run until cancelled, then save a last time."""
        try:
            while True:
                await trio.sleep(SAVE_EVERY_S)
                if (save := self._due()) is not None:
                    with self._told():
                        await self._context.hasher.wait_for_disk(save)
        finally:
            if (save := self._due()) is not None:
                with self._told():
                    save()

    def _due(self) -> Callable[[], None] | None:
        """Return a function that writes the peerstore as it is now; None where the file is up to date."""
        if self._path is None or not self._peerstore.changed:
            return None
        return partial(write_whole, self._path, self._peerstore.dump())

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Warn once an outage when the peerstore could not be written; the next save tries again."""
        try:
            yield
        except LocalError as error:
            self._peerstore.changed = True
            if not self._complained:  # a full disk stays full for a while
                self._context.warn(str(error))
            self._complained = True
        else:
            self._complained = False
