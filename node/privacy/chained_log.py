"""A file of one JSON object a line, each synced to the disk before what it covers is made.

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

Only sums are ever asked for. So a file that has become long is replaced by one whose first line, the head, has the sum
of all its entries; the next entry is the first line after it:

    head       1, the version of this line
    entry      the number of the newest entry in it
    newest     its digest
    digests    the beginnings of those of the newest entries, for what older checkpoints have seen
    sum        what all of them cover together: the ledger's own fields
    what, ts, before, digest    `head`, and as above

The new file is whole on the disk, and locked, before it takes the place of the old one, and the entry that is written
with it covers nothing before that is on the disk too. So whichever of both a crash leaves, each entry is in it once.
"""

import fcntl
import hashlib
import json
import os
import stat
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeAlias, TypeVar

from gossip.core.atomic_file import sync_folder
from node.system.errors import RunError, UsageError, cannot_write
from node.system.run_dir import no_locks

What: TypeAlias = Literal["released", "torn", "head"]
Fields: TypeAlias = Mapping[str, Any]

DIGEST_BYTES: Final = 16
"""As many as no accident gets past."""

TAIL_BYTES: Final = 1 << 20
"""Of the lines after the head from which a file is replaced, or as many as the head has where it has more. They are
5,000 of a node's own ledger, which are read in a tenth of a second. Chosen."""

REMEMBERED: Final = 1 << 16
"""Digests that a head keeps, of the newest entries: the checkpoints of 18 hours with a round a second. An entry before
them is known by its number alone. They take a megabyte. Chosen."""

SHORT: Final = 16
"""Hexadecimal digits that are kept of each: no accident gets past 64 bits."""

_HEAD: Final = b'{"head": '
"""How the first line begins where it is a head, damaged or not."""

_TRIES: Final = 100
"""To lock a file before another takes its place, which happens once in thousands of entries."""

_INTERRUPTED: Final = "it is not known what was written last"

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
    digests: bytearray = field(default_factory=bytearray)
    """The first SHORT digits of those of the newest entries, one after another: REMEMBERED of them at least, and twice
    as many at most."""
    head_bytes: int = 0
    """Length of the head; 0: there is none."""

    @abstractmethod
    def take(self, fields: Fields) -> None:
        """Count an entry. Raises one of WRONG, with nothing counted, for fields that are none."""

    @abstractmethod
    def total(self) -> dict[str, Any]:
        """Return all that `take` has counted, as JSON values that are read exactly."""

    @abstractmethod
    def take_total(self, fields: Fields) -> None:
        """Count what `total` returned, first of all. Raises one of WRONG for fields that are none."""

    def begins_with(self, mark: LedgerMark) -> bool:
        """Return whether the file has the entry that `mark` names, and the same ones before it. Of an entry before the
        REMEMBERED newest it is known that there is one."""
        if mark in (NOTHING, self.mark):
            return True
        since = self.mark.entries - mark.entries
        if mark.entries <= 0 or since <= 0:
            return False
        at = len(self.digests) - (since + 1) * SHORT
        return at < 0 or self.digests[at : at + SHORT].decode("ascii") == mark.digest[:SHORT]

    def _add(self, fields: Fields) -> None:
        self.take(fields)
        self.mark = LedgerMark(self.mark.entries + 1, fields["digest"])
        self.digests += fields["digest"][:SHORT].encode("ascii")
        if len(self.digests) > 2 * REMEMBERED * SHORT:
            self._forget()

    def _forget(self) -> None:
        del self.digests[: -REMEMBERED * SHORT]

    def _begin(self, head: Fields) -> None:
        if head["head"] != 1:
            raise ValueError("a head of another release")
        self.take_total(head["sum"])
        self.mark = LedgerMark(int(head["entry"]), str(head["newest"]))
        self.digests[:] = head["digests"].encode("ascii")

    def _head(self, ts: float) -> bytes:
        """Return the line that stands for all entries so far."""
        self._forget()
        line: dict[str, Any] = {
            "head": 1,
            "entry": self.mark.entries,
            "newest": self.mark.digest,
            "digests": self.digests.decode("ascii"),
            "sum": self.total(),
            "what": "head",
            "ts": ts,
            "before": BEGINS,
        }
        return _encoded({**line, "digest": _digest(line)})


C = TypeVar("C", bound=ChainContents)


class ChainedLog:
    """The file of a ledger that this process alone writes. Close it; the kernel lets go of its lock when the process
    ends."""

    def __init__(self, path: Path, contents: ChainContents, *, clock: Callable[[], float], without: str) -> None:
        """Open the file, or make it, and read it into `contents`. `without`: what may not happen while it cannot be
        written. Raises RunError where another process has it, or it is damaged."""
        self.path, self.contents = path, contents
        self._file = Path(os.path.realpath(path))  # a name for a file elsewhere stays one when the file is replaced
        self._clock, self._without = clock, without
        self._descriptor = _locked(path)
        try:
            self._made_durable()
            with path.open("rb") as lines:
                read_lines(lines, path, contents)
            self._size = os.fstat(self._descriptor).st_size
            self._ends_mid_line = self._size > 0 and os.pread(self._descriptor, 1, self._size - 1) != b"\n"
        except BaseException:
            os.close(self._descriptor)
            raise
        self._tail_bytes = TAIL_BYTES
        self._failed = ""

    def append(self, entries: Sequence[tuple[Fields, What]]) -> None:
        """Write entries in one go. When it returns, they are on the disk. Raises RunError where they are not: then
        nothing that they cover may be made, and nothing further is written by this process."""
        if self._failed:
            raise self._error(self._failed)
        mark, lines = self.contents.mark, []
        for fields, what in entries:
            line = _line(mark, fields, what, self._now())
            mark = LedgerMark(line["entry"], line["digest"])
            lines.append(line)
        data = b"".join(map(_encoded, lines))
        self._failed = _INTERRUPTED  # whatever ends this before its end, Ctrl-C too
        if not (self._is_long() and self._replace(data)):
            self._write(b"\n" * self._ends_mid_line + data)
        self._ends_mid_line, self.contents.torn = False, 0
        for line in lines:
            self.contents._add(line)
        self._failed = ""

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._descriptor)

    def _now(self) -> float:
        return round(self._clock(), 3)

    def _write(self, data: bytes) -> None:
        try:
            written = os.write(self._descriptor, data)
            if written == len(data):
                os.fsync(self._descriptor)
                self._size += written
                return
            self._failed = "No space left on device"
        except OSError as error:
            self._failed = error.strerror or str(error)
        raise self._error(self._failed)  # what is on the disk now is not known: the next process reads it

    def _is_long(self) -> bool:
        """Return whether it is time for a new head."""
        tail = self._size - self.contents.head_bytes
        return tail >= max(self._tail_bytes, self.contents.head_bytes)

    def _replace(self, data: bytes) -> bool:
        """Put a file in this one's place that has a head, and `data` after it. Return whether that is done; where not,
        the file is as it was. Raises RunError where it is not known which of both a crash would leave."""
        beside = self._file.with_name(f".{self._file.name}.new")
        head = self.contents._head(self._now())
        try:
            new = _written_beside(beside, head + data, stat.S_IMODE(os.fstat(self._descriptor).st_mode))
        except OSError:  # a full disk has room for a line more often than for a head
            return self._later(beside)
        try:
            if not self._put(beside, new):
                os.close(new)
                return self._later(beside)
        except BaseException:  # Ctrl-C too: nothing more is written here, and the next process may have the file
            os.close(new)
            raise
        os.close(self._descriptor)
        self._descriptor, self._tail_bytes = new, TAIL_BYTES
        self._size, self.contents.head_bytes = len(head) + len(data), len(head)
        try:
            sync_folder(self._file.parent)
        except OSError as error:
            self._failed = error.strerror or str(error)
            raise self._error(self._failed) from error
        return True

    def _put(self, beside: Path, new: int) -> bool:
        """Rename the open file `new`. Return whether it is in its place. Raises RunError where neither is there."""
        try:
            beside.replace(self._file)
        except OSError as error:
            if _is_at(self._descriptor, self._file):  # a file that is mounted by itself is not replaced
                return False
            if not _is_at(new, self._file):  # else a network's answer was lost
                self._failed = error.strerror or str(error)
                raise self._error(self._failed) from error
        return True

    def _later(self, beside: Path) -> bool:
        with suppress(OSError):
            beside.unlink(missing_ok=True)
        self._tail_bytes = self._size - self.contents.head_bytes + TAIL_BYTES
        return False

    def _error(self, why: str) -> RunError:
        message = f"cannot write {self.path}: {why}; without it {self._without}"
        return RunError(message, "free some disk space, and start the node again")

    def _made_durable(self) -> None:
        try:
            os.fsync(self._descriptor)
            sync_folder(self.path.parent)
        except OSError as error:
            raise self._error(error.strerror or str(error)) from error


def read_lines(lines: Iterable[bytes], path: Path, contents: C) -> C:
    """Return `contents` with what the lines of the ledger `path` hold. Raises RunError for a line that cannot be read
    and was not charged, other than at the end, for a damaged head, and where lines are missing."""
    torn_at = 0
    for number, text in enumerate(lines, 1):
        line = _whole(text)
        if number == 1 and text.startswith(_HEAD):
            try:
                contents._begin(line)  # type: ignore[arg-type]  # None: as damaged as any other that is no head
            except WRONG:
                raise _damaged(path, number) from None
            contents.head_bytes = len(text)
            continue
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
    if not contents.mark.entries:
        what = "is not there, or is empty"
    elif contents.mark.entries < mark.entries:
        what = f"has {contents.mark.entries} entries"
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


def _encoded(line: Fields) -> bytes:
    return json.dumps(line).encode("ascii") + b"\n"


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
        raise cannot_write(path, error) from error


def _locked(path: Path) -> int:
    """Return a descriptor of the file that is at `path`, which no other process has."""
    for _ in range(_TRIES):
        descriptor = _opened(path)
        try:
            _lock(descriptor, path)
            if _is_at(descriptor, path):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # its owner has put another in its place since it was opened
    raise _in_use(path)


def _lock(descriptor: int, path: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise _in_use(path) from None
    except OSError as error:
        raise no_locks(path, error) from error


def _in_use(path: Path) -> RunError:
    return RunError(f"{path} is in use by another process", "wait for it to end, or give another --run-dir")


def _is_at(descriptor: int, path: Path) -> bool:
    """Return whether the open file is the one that is found by this name, as far as can be told."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except OSError:
        return False


def _written_beside(path: Path, data: bytes, mode: int) -> int:
    """Return a descriptor of a new file that holds `data` on the disk, and that no other process has. Raises OSError.
    What an earlier process left of one is removed."""
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, mode)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.fchmod(descriptor, mode)
        left = memoryview(data)
        while left:
            left = left[os.write(descriptor, left) :]
        os.fsync(descriptor)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def check_not_left(path: Path, contents: ChainContents, whose: str, setting: str) -> None:
    """Raise UsageError where a ledger says that data were protected. For a node whose settings protect them no more: a
    lost file of settings, or a forgotten option, would release them uncovered."""
    if contents.mark.entries or contents.torn:
        raise UsageError(
            f"{path} says that {whose} data were protected, and {setting} is off now: no epsilon would cover what "
            "follows",
            f"set {setting} as it was; or, where you mean it, move that file away, or take another --run-dir",
        )
