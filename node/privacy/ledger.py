"""The privacy ledger: what a node's data have told so far, one JSON object a line in `privacy.jsonl` of its folder.

    entry      its number, from 1
    mechanism, noise, rate, count    the releases (p2ptrain/privacy/base.py)
    what       `released`: about to be made; `torn`: charged for a line that cannot be read
    ts         Unix seconds
    before     the digest of the entry before
    digest     BLAKE2b of all the other fields, in hex

The file only grows. A line is synced to the disk before the first release that it covers is made. So a process that is
killed at any moment has made no release without a line, and a line may cover some that were never made. It is a file
of its own, for a checkpoint goes back and this must not; each checkpoint names the entry that it has seen.

A line that was cut (a full disk, a power cut) covers nothing that was made, as it was never known to be synced. It is
charged all the same, since a damaged line at the end looks alike: as the costliest entry that the file has, or as what
is asked for next if that costs more. The digests find accidents; they are no proof to anybody else.
"""

import fcntl
import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from gossip.core.atomic_file import sync_folder
from node.system.errors import RunError
from p2ptrain.privacy.accounting import epsilon_of
from p2ptrain.privacy.base import Release

What: TypeAlias = Literal["released", "torn"]

DIGEST_BYTES: Final = 16
"""As many as no accident gets past."""

COMPARED_AT: Final = 1e-5
"""Delta at which two entries are compared by what they cost."""

BEGINS: Final = ""
"""The digest before the first entry."""


class LedgerMark(NamedTuple):
    """A place in a ledger, which it never goes back behind."""

    entries: int
    digest: str


NOTHING: Final = LedgerMark(0, BEGINS)


@dataclass
class LedgerContents:
    """What a ledger's file holds."""

    mark: LedgerMark = NOTHING
    releases: dict[tuple[str, float, float], int] = field(default_factory=dict)
    """How many, by mechanism, noise and rate."""
    torn: int = 0
    """Lines at the end that cannot be read, and are not charged yet."""
    costliest: Release | None = None
    """The entry that spends most."""
    digests: list[str] = field(default_factory=list)
    """That of every entry."""
    _compared: set[Release] = field(default_factory=set)

    def whole_releases(self) -> list[Release]:
        """Return what the whole lines have spent."""
        return [
            Release(mechanism=mechanism, noise=noise, rate=rate, count=count)
            for (mechanism, noise, rate), count in self.releases.items()
        ]

    def all_releases(self) -> list[Release]:
        """Return what was spent, as far as it is known of torn lines."""
        return [*self.whole_releases(), *([] if self.costliest is None else [self.costliest] * self.torn)]

    def begins_with(self, mark: LedgerMark) -> bool:
        """Return whether the file has the entry that `mark` names, and the same ones before it."""
        return mark == NOTHING or (
            0 < mark.entries <= len(self.digests) and self.digests[mark.entries - 1] == mark.digest
        )

    def _take(self, release: Release, digest: str) -> None:
        key = (release.mechanism, release.noise, release.rate)
        self.releases[key] = self.releases.get(key, 0) + release.count
        if release not in self._compared:  # a run has few that differ
            self._compared.add(release)
            self.costliest = _costlier(self.costliest, release)
        self.mark = LedgerMark(self.mark.entries + 1, digest)
        self.digests.append(digest)


class PrivacyLedger:
    """A ledger that this process alone writes. Close it; the kernel lets go of its lock when the process ends."""

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.time) -> None:
        """Open the file, or make it. Raises RunError where another process has it, or it is damaged."""
        self.path, self._clock = path, clock
        self._descriptor = _opened(path)
        try:
            _lock(self._descriptor, path)
            self._made_durable()
            data = path.read_bytes()
            self.contents = parsed(data, path)
        except BaseException:
            os.close(self._descriptor)
            raise
        self._ends_mid_line = not data.endswith(b"\n") and bool(data)
        self._failed = ""

    @property
    def mark(self) -> LedgerMark:
        """Return the newest entry."""
        return self.contents.mark

    def with_torn(self, release: Release) -> list[Release]:
        """Return what `append` would write for `release`: before it what is owed for torn lines."""
        costliest = _costlier(self.contents.costliest, release)
        return [*[costliest] * self.contents.torn, release]

    def append(self, release: Release) -> None:
        """Write that `release` is about to be made. When it returns, that is on the disk. Raises RunError where it is
        not: then nothing may be released by this process any more."""
        if self._failed:
            raise self._error(self._failed)
        torn: list[What] = ["torn"] * self.contents.torn
        mark, lines, taken = self.mark, [], []
        for each, what in zip(self.with_torn(release), [*torn, "released"], strict=True):
            entry = _fields(mark, each, what, round(self._clock(), 3))
            mark = LedgerMark(entry["entry"], entry["digest"])
            lines.append(json.dumps(entry) + "\n")
            taken.append((each, mark.digest))
        self._write(("\n" if self._ends_mid_line else "") + "".join(lines))
        self._ends_mid_line, self.contents.torn = False, 0
        for each, digest in taken:
            self.contents._take(each, digest)

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
        message = f"cannot write {self.path}: {why}; without it no private step may be taken"
        return RunError(message, "free some disk space, and start the node again")

    def _made_durable(self) -> None:
        try:
            os.fsync(self._descriptor)
            sync_folder(self.path.parent)
        except OSError as error:
            raise self._error(error.strerror or str(error)) from error


def read_ledger(path: Path) -> LedgerContents:
    """Return what a ledger holds; nothing where there is none. Raises RunError where it is damaged."""
    with suppress(FileNotFoundError):
        return parsed(path.read_bytes(), path)
    return LedgerContents()


def parsed(data: bytes, path: Path) -> LedgerContents:
    """Return what the bytes of the ledger `path` hold. Raises RunError for a line that cannot be read and was not
    charged, other than at the end, and where lines are missing."""
    contents, torn_at = LedgerContents(), 0
    for number, line in enumerate(data.splitlines(), 1):
        entry = _read_entry(line)
        if entry is None:
            contents.torn += 1
            torn_at = number
            continue
        follows = (entry.number, entry.before) == (contents.mark.entries + 1, contents.mark.digest)
        if not follows or (contents.torn and entry.what != "torn"):
            raise _damaged(path, torn_at or number)
        contents.torn = max(0, contents.torn - 1)
        contents._take(entry.release, entry.digest)
    return contents


def check_mark(contents: LedgerContents, mark: LedgerMark, path: Path) -> None:
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


class _Entry(NamedTuple):
    number: int
    release: Release
    what: str
    before: str
    digest: str


def _fields(before: LedgerMark, release: Release, what: What, ts: float) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "entry": before.entries + 1,
        "mechanism": release.mechanism,
        "noise": release.noise,
        "rate": release.rate,
        "count": release.count,
        "what": what,
        "ts": ts,
        "before": before.digest,
    }
    return {**entry, "digest": _digest(entry)}


def _read_entry(line: bytes) -> _Entry | None:
    """Return the entry that this line is; None where it is no whole one."""
    try:
        fields = json.loads(line)
        digest = fields.pop("digest")
        if digest != _digest(fields):
            return None
        release = Release(
            mechanism=str(fields["mechanism"]),
            noise=float(fields["noise"]),
            rate=float(fields["rate"]),
            count=int(fields["count"]),
        )
        return _Entry(int(fields["entry"]), release, str(fields["what"]), str(fields["before"]), digest)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None


def _digest(fields: Mapping[str, Any]) -> str:
    text = json.dumps(fields, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=DIGEST_BYTES).hexdigest()


def _costlier(one: Release | None, other: Release) -> Release:
    if one is None:
        return other
    return max((one, other), key=lambda it: epsilon_of([it], COMPARED_AT))


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
