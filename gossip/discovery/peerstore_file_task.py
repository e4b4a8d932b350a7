"""The address book on disk: read at the start, written now and then when it has changed, and at the end.

Written whole or not at all (`gossip/core/atomic_file.py`), in a worker thread: a sync waits for the disk, and the loop
must not. A damaged file is said to be damaged, and the node starts with an empty book.
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
"""A book changes within seconds while a swarm gathers; who is killed then knows its bootstrap peers still."""


def load_peerstore(path: Path, peerstore: PeerStore, scope: Scope) -> None:
    """Take up the file, if there is one. Raises LocalError, which says what is wrong with it."""
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
    """Write an address book whole or not at all. Raises LocalError."""
    try:
        write_atomic(path, data)
    except OSError as error:
        raise LocalError(f"cannot write the address book {path}: {error.strerror}") from error


class PeerStoreKeeper:
    """Keeps the file true while the node runs."""

    def __init__(self, context: ServiceContext) -> None:
        self._context = context
        self._path = context.config.address_book
        self._complained = False

    def load(self) -> None:
        """Once, before anybody is dialled."""
        if self._path is not None:
            try:
                load_peerstore(self._path, self._context.engine.peerstore, self._context.engine.scope)
            except LocalError as error:
                self._context.warn(str(error))

    async def run(self) -> None:
        """Runs until cancelled, then saves a last time."""
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
        """What writes the book as it is now; None where the file has it all."""
        peerstore = self._context.engine.peerstore
        if self._path is None or not peerstore.changed:
            return None
        return partial(write_whole, self._path, peerstore.dump())

    @contextmanager
    def _told(self) -> Iterator[None]:
        """A book that could not be written is warned of, once, and written again the next time."""
        try:
            yield
        except LocalError as error:
            self._context.engine.peerstore.changed = True
            if not self._complained:  # a full disk stays full for a while
                self._context.warn(str(error))
            self._complained = True
