"""What a node says once in its life, on disk before it leaves the process.

Two unlike statements of one thing are a proof of two histories, and others ban the key for it; of a secure sum they
would open what it hides. A node that was killed goes on from a checkpoint, or joins the others, and may come to the
same round again. Then it says nothing: that one fact is all that must outlive a crash.
"""

from pathlib import Path
from typing import Final

from gossip.core.atomic_file import PRIVATE, write_atomic
from gossip.core.digests import DIGEST_BYTES
from gossip.core.errors import LocalError, RemoteError
from gossip.core.ids import Digest
from gossip.core.limits import MAX_COUNTER
from gossip.core.wire import pack, unpack

MAX_NAMES: Final = 64
"""Things that are remembered by name; of older ones the highest round is, up to which none is said any more. Several
may be of one round, as groups sum, and who goes on from an older checkpoint repeats some rounds. Chosen."""

_MOST_BYTES: Final = MAX_NAMES * (DIGEST_BYTES + 16) + 64


class SaidOnce:
    """Names of what was said, with rounds; kept in `path`, or without one in memory alone, as in simulations. `what`
    was said, for people: "which secure sums were begun"."""

    def __init__(self, path: Path | None, what: str) -> None:
        self._path = path
        self._what = what
        self._said: dict[Digest, int] | None = None
        self._floor = 0

    def first(self, name: Digest, round: int) -> bool:
        """Note that this is said, in this round; it is on disk when this returns True. False where it was said before,
        or may have been. Raises LocalError where the file cannot be read or written: nothing is noted then."""
        if self._said is None:
            self._said, self._floor = self._read()
        if name in self._said or round < self._floor:
            return False
        said, floor = {**self._said, name: round}, self._floor
        while len(said) > MAX_NAMES:
            oldest = min(said, key=said.__getitem__)
            floor = max(floor, said.pop(oldest) + 1)
        self._write(said, floor)
        self._said, self._floor = said, floor
        return True

    def _read(self) -> tuple[dict[Digest, int], int]:
        if self._path is None:
            return {}, 0
        try:
            with self._path.open("rb") as file:
                fields = unpack(file.read(_MOST_BYTES + 1), _MOST_BYTES)
            floor, items = fields.integer(MAX_COUNTER), fields.array(MAX_NAMES)
            fields.end()
            said = {}
            while items.left:
                entry = items.array(2)
                name, round_ = entry.digest(), entry.integer(MAX_COUNTER)
                said[name] = round_
                entry.end()
        except FileNotFoundError:
            return {}, 0
        except OSError as error:
            raise LocalError(f"cannot read {self._what}, {self._path}: {error.strerror}") from error
        except RemoteError as error:
            why = f"{self._path} does not say {self._what} ({error})"
            raise LocalError(f"{why}: put back what it was, or begin with a new run folder") from error
        return said, floor

    def _write(self, said: dict[Digest, int], floor: int) -> None:
        if self._path is None:
            return
        try:
            write_atomic(self._path, pack((floor, list(said.items()))), mode=PRIVATE)
        except OSError as error:
            raise LocalError(f"cannot write {self._what}, {self._path}: {error.strerror}") from error
