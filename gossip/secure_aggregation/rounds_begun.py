"""Which secure sums this node has begun, on disk before anything of them leaves the process.

The keys of a sum are in memory alone. A node that crashes can therefore neither sign a second set of survivors nor
tell a share, as long as it never begins the same sum again; after a restart it is a member that has left. That one
fact is all that must outlive it (decision 0123).
"""

from pathlib import Path
from typing import Final

from gossip.core.atomic_file import PRIVATE, write_atomic
from gossip.core.digests import DIGEST_BYTES
from gossip.core.errors import LocalError, RemoteError
from gossip.core.ids import Digest
from gossip.core.limits import MAX_COUNTER
from gossip.core.wire import pack, unpack

MAX_BEGUN: Final = 64
"""Sums that are remembered by name; of older ones the highest round is, below which none is begun any more. Several
groups may sum in one round, and a node that returns from an older checkpoint may repeat some rounds in other groups."""

_MOST_BYTES: Final = MAX_BEGUN * (DIGEST_BYTES + 16) + 64


class RoundsBegun:
    """The sums that were begun; kept in `path`, or without one in memory alone, as in simulations."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._begun: dict[Digest, int] | None = None
        self._floor = 0

    def begin(self, name: Digest, round: int) -> None:
        """Note that a sum begins; it is on disk when this returns. Raises LocalError where it was begun before, its
        round is too old to tell, or the file cannot be read or written."""
        if self._begun is None:
            self._begun, self._floor = self._read()
        if name in self._begun:
            raise LocalError("this sum was begun before: a round is summed once")
        if round < self._floor:
            raise LocalError(f"a sum of round {round} may have been begun before: rounds from {self._floor} on may not")
        self._begun[name] = round
        while len(self._begun) > MAX_BEGUN:
            oldest = min(self._begun, key=lambda each: self._begun[each] if self._begun else 0)
            self._floor = max(self._floor, self._begun.pop(oldest) + 1)
        self._write()

    def _read(self) -> tuple[dict[Digest, int], int]:
        if self._path is None or not self._path.exists():
            return {}, 0
        try:
            with self._path.open("rb") as file:
                fields = unpack(file.read(_MOST_BYTES + 1), _MOST_BYTES)
            floor, items = fields.integer(MAX_COUNTER), fields.array(MAX_BEGUN)
            fields.end()
            begun = {}
            while items.left:
                entry = items.array(2)
                name, round_ = entry.digest(), entry.integer(MAX_COUNTER)
                begun[name] = round_
                entry.end()
        except OSError as error:
            raise LocalError(f"cannot read which secure sums were begun, {self._path}: {error.strerror}") from error
        except RemoteError as error:
            raise LocalError(f"{self._path} does not say which secure sums were begun: {error}") from error
        return begun, floor

    def _write(self) -> None:
        assert self._begun is not None
        if self._path is None:
            return
        try:
            write_atomic(self._path, pack((self._floor, list(self._begun.items()))), mode=PRIVATE)
        except OSError as error:
            raise LocalError(f"cannot write that a secure sum begins, {self._path}: {error.strerror}") from error
