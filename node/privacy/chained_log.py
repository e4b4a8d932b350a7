"""A file that only grows, one JSON object a line, each synced to the disk before what it covers is made.

    entry      its number, from 1
    ...        what it covers: the ledger's own fields
    what       `released`: about to be made; `torn`: charged for a line that cannot be read
    ts         Unix seconds
    before     the digest of the entry before
    digest     BLAKE2b of all the other fields, in hex

So a process that is killed at any moment has made nothing without a line, and a line may cover what was never made.

A line that was cut (a full disk, a power cut) covers nothing that was made, as it was never known to be synced. It is
charged all the same, since a damaged line at the end looks alike: `torn` entries follow it. A damaged line elsewhere,
or one that is missing, is refused. The digests find accidents; they are no proof to anybody else.
"""

import fcntl
import hashlib
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeAlias, TypeVar

from gossip.core.atomic_file import sync_folder
from node.system.errors import RunError

What: TypeAlias = Literal["released", "torn"]
Fields: TypeAlias = Mapping[str, Any]

DIGEST_BYTES: Final = 16
"""As many as no accident gets past."""

BEGINS: Final = ""
"""The digest before the first entry."""

WRONG: Final = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)
"""What reading a damaged line raises."""


class LedgerMark(NamedTuple):
    """A place in a ledger, which it never goes back behind."""

    entries: int
    digest: str


NOTHING: Final = LedgerMark(0, BEGINS)


@dataclass
class ChainContents(ABC):
    """What the lines of a file hold. A ledger says in `take` what an entry is to it."""

    mark: LedgerMark = NOTHING
    """The newest entry."""
    torn: int = 0
    """Lines at the end that cannot be read, and are not charged yet."""
    digests: list[str] = field(default_factory=list)
    """That of every entry."""

    @abstractmethod
    def take(self, fields: Fields) -> None:
        """Count an entry. Raises one of WRONG, with nothing counted, for fields that are none."""

    def begins_with(self, mark: LedgerMark) -> bool:
        """Return whether the file has the entry that `mark` names, and the same ones before it."""
        return mark == NOTHING or (
            0 < mark.entries <= len(self.digests) and self.digests[mark.entries - 1] == mark.digest
        )

    def _add(self, fields: Fields) -> None:
        self.take(fields)
        self.mark = LedgerMark(self.mark.entries + 1, fields["digest"])
        self.digests.append(fields["digest"])


C = TypeVar("C", bound=ChainContents)


class ChainedLog:
    """The file of a ledger that this process alone writes. Close it; the kernel lets go of its lock when the process
    ends."""

    def __init__(self, path: Path, contents: ChainContents, *, clock: Callable[[], float], without: str) -> None:
        """Open the file, or make it, and read it into `contents`. `without`: what may not happen while it cannot be
        written. Raises RunError where another process has it, or it is damaged."""
        self.path, self.contents = path, contents
        self._clock, self._without = clock, without
        self._descriptor = _opened(path)
        try:
            _lock(self._descriptor, path)
            self._made_durable()
            data = path.read_bytes()
            read_lines(data, path, contents)
        except BaseException:
            os.close(self._descriptor)
            raise
        self._ends_mid_line = not data.endswith(b"\n") and bool(data)
        self._failed = ""

    def append(self, entries: Sequence[tuple[Fields, What]]) -> None:
        """Write entries in one go. When it returns, they are on the disk. Raises RunError where they are not: then
        nothing that they cover may be made, and nothing further is written by this process."""
        if self._failed:
            raise self._error(self._failed)
        mark, lines = self.contents.mark, []
        for fields, what in entries:
            line = _line(mark, fields, what, round(self._clock(), 3))
            mark = LedgerMark(line["entry"], line["digest"])
            lines.append(line)
        self._write(("\n" if self._ends_mid_line else "") + "".join(json.dumps(line) + "\n" for line in lines))
        self._ends_mid_line, self.contents.torn = False, 0
        for line in lines:
            self.contents._add(line)

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._descriptor)

    def _write(self, text: str) -> None:
        data = text.encode("ascii")
        try:
            written = os.write(self._descriptor, data)
            if written == len(data):
                os.fsync(self._descriptor)
                return
            self._failed = "No space left on device"
        except OSError as error:
            self._failed = error.strerror or str(error)
        raise self._error(self._failed)  # what is on the disk now is not known: the next process reads it

    def _error(self, why: str) -> RunError:
        message = f"cannot write {self.path}: {why}; without it {self._without}"
        return RunError(message, "free some disk space, and start the node again")

    def _made_durable(self) -> None:
        try:
            os.fsync(self._descriptor)
            sync_folder(self.path.parent)
        except OSError as error:
            raise self._error(error.strerror or str(error)) from error


def read_lines(data: bytes, path: Path, contents: C) -> C:
    """Return `contents` with what the bytes of the ledger `path` hold. Raises RunError for a line that cannot be read
    and was not charged, other than at the end, and where lines are missing."""
    torn_at = 0
    for number, text in enumerate(data.splitlines(), 1):
        line = _whole(text)
        if line is None:
            contents.torn += 1
            torn_at = number
            continue
        follows = (line["entry"], line["before"]) == (contents.mark.entries + 1, contents.mark.digest)
        if not follows or (contents.torn and line["what"] != "torn"):
            raise _damaged(path, torn_at or number)
        try:
            contents._add(line)
        except WRONG:
            contents.torn += 1
            torn_at = number
            continue
        contents.torn = max(0, contents.torn - 1)
    return contents


def check_mark(contents: ChainContents, mark: LedgerMark, path: Path) -> None:
    """Raise RunError where a checkpoint has seen a `mark` that the ledger does not have."""
    if contents.begins_with(mark):
        return
    if not contents.digests:
        what = "is not there, or is empty"
    elif len(contents.digests) < mark.entries:
        what = f"has {len(contents.digests)} entries"
    else:
        what = "has other ones"
    message = f"{path} {what}, and the checkpoint beside it was made after {mark.entries} entries"
    raise RunError(message, _PUT_BACK)


_PUT_BACK: Final = (
    "put the whole file back; without it nobody knows what was spent, and these data must not be trained on under the "
    "same budget"
)


def _damaged(path: Path, line: int) -> RunError:
    return RunError(f"line {line} of {path} is damaged, or lines after it are missing", _PUT_BACK)


def _line(before: LedgerMark, fields: Fields, what: What, ts: float) -> dict[str, Any]:
    line = {"entry": before.entries + 1, **fields, "what": what, "ts": ts, "before": before.digest}
    return {**line, "digest": _digest(line)}


def _whole(text: bytes) -> dict[str, Any] | None:
    """Return the fields of a line; None where it is no whole one."""
    try:
        line: dict[str, Any] = json.loads(text)
        rest = {name: value for name, value in line.items() if name != "digest"}
        is_whole = line["digest"] == _digest(rest) and {"entry", "what", "before"} <= rest.keys()
    except WRONG:
        return None
    return line if is_whole else None


def _digest(fields: Fields) -> str:
    text = json.dumps(fields, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=DIGEST_BYTES).hexdigest()


def _opened(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise RunError(
            f"cannot write {path}: {error.strerror}", "free some disk space, or give another --run-dir"
        ) from error


def _lock(descriptor: int, path: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise RunError(
            f"{path} is in use by another process", "wait for it to end, or give another --run-dir"
        ) from None
