"""The node's event log: one JSON object a line in `events.jsonl`, and the same events for listeners in the process.

Events are typed (event_types.py). On disk they are records: JSON objects with `ts` (Unix seconds) and `event`. Secrets
are hidden before an event is written or passed on (redaction.py). docs/decisions/0031 says why this is not a structlog
logger.

The log never ends a run: when the disk is full it warns once on stderr, and tries again with every further event. Nor
does it fill the disk: at MAX_BYTES, or what `bound` says, the file becomes `events.1.jsonl`, replacing an older one,
and a new file is begun.
"""

import json
import math
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Final, TypeAlias

from node.events.event_types import Event, Record, parse
from node.events.redaction import Redactor
from node.system import run_dir as folders
from node.system.errors import RunError
from node.system.safe_io import say

Sink: TypeAlias = Callable[[Event], None]

MAX_DIGITS: Final = 15
"""Longest integers that every reader of JSON takes exactly: a double has 53 bits. Counts of bytes have 13 digits at
most."""

MAX_NUMBER: Final = 1e100
"""Numbers beyond it measure nothing, and their sums and squares are no numbers any more."""

MAX_TS: Final = 1e11
"""Times beyond it, in Unix seconds, are no times: the year 5138."""

MAX_BYTES = 256 << 20
"""Most bytes of one file: 200,000 rounds among a few neighbours. Two such files still fit on a small disk."""


class EventLog:
    """Call it to record an event: `emit(WaitingFor(message="..."))`. Use it as a context manager."""

    def __init__(
        self,
        path: Path,
        *,
        sinks: Iterable[Sink] = (),
        clock: Callable[[], float] = time.time,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        """Append to `path`. Raises RunError when it cannot be opened."""
        self.path = path
        self._sinks = list(sinks)
        self._clock = clock
        self._max_bytes = max_bytes
        self._warned = False
        self.redact = Redactor()
        """Hides the secrets that it has learned; code that obtains a secret must call its `learn`."""
        try:
            self._open()
        except OSError as error:
            raise RunError(
                f"cannot write {path}: {error.strerror}", "give another folder by --run-dir or --out"
            ) from error

    def add_sink(self, sink: Sink) -> None:
        """From now on, call `sink` with every event."""
        self._sinks.append(sink)

    def bound(self, max_bytes: int) -> None:
        """Let each of the two files take so many bytes at most. Of what they have already, the newest whole lines that
        fit stay."""
        self._max_bytes = max_bytes
        try:
            if self._bytes > max_bytes:
                self._rotate()
            _keep_newest(older(self.path), max_bytes)
        except OSError as error:
            self._warn(error)

    def __call__(self, event: Event, /) -> Event:
        """Record an event and return it as it was recorded: with its time, and without secrets."""
        ts, told = round(self._clock(), 3), event.told()
        shown = self.redact.fields(told)
        record = {"ts": ts, "event": event.name, **shown}
        clean = event.at(ts) if shown == told else parse(record)
        assert clean is not None, "what redaction leaves is the same event"
        self._write(to_line(record).encode())
        for sink in self._sinks:
            sink(clean)
        return clean

    def close(self) -> None:
        """Close the file; later events go only to the sinks."""
        try:
            self._file.close()
        except OSError as error:  # the last bytes did not fit
            self._warn(error)

    def __enter__(self) -> "EventLog":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self) -> None:
        self._file: IO[bytes] = self.path.open("ab")
        self._bytes = self._file.tell()
        if self._bytes and not _ends_whole(self.path):  # a crash cut the last line short: only that line is lost
            self._append(b"\n")

    def _write(self, line: bytes) -> None:
        if self._file.closed:
            return
        try:
            if self._bytes and self._bytes + len(line) > self._max_bytes:
                self._rotate()
            self._append(line)
        except OSError as error:
            self._warn(error)

    def _append(self, line: bytes) -> None:
        self._file.write(line)
        self._bytes += len(line)
        self._file.flush()

    def _rotate(self) -> None:
        with suppress(FileNotFoundError):  # set aside already, by a turn that could not open the next file
            self.path.replace(older(self.path))
        full = self._file
        self._open()
        full.close()

    def _warn(self, error: OSError) -> None:
        if not self._warned:
            self._warned = True
            # Where stderr is a file it may lie on the same full disk: then no warning is possible.
            say(sys.stderr, f"warning: {self.path}: {error.strerror}; going on without the event log\n")


class JsonSink:
    """Writes events as JSON lines on a stream. When its reader has gone away only the sink ends."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream: IO[str] | None = stream

    def __call__(self, event: Event) -> None:
        """Write one line, at once."""
        if self._stream is not None and not say(self._stream, to_line(event.to_record())):
            self._stream = None


def to_line(record: Mapping[str, object]) -> str:
    """Return the record as one line of strict JSON: a NaN or Inf becomes null, a path its text. Bytes of a file's name
    that are no UTF-8, which Python holds as surrogates, are escaped: no stream takes them as they are."""
    line = json.dumps(_finite(record), default=str, ensure_ascii=False, separators=(", ", ": ")) + "\n"
    return line if line.isascii() else line.encode("utf-8", "backslashreplace").decode()


def event_in(line: str | bytes) -> Event | None:
    """Return the event in a line; None when it holds none that this release knows."""
    record = record_in(line)
    return None if record is None else parse(record)


def from_line(line: str | bytes) -> Record | None:
    """Return the record in a line; None when it holds none (a line cut short by a crash, another program's output)."""
    return _record(line, json.loads)


def record_in(line: str | bytes) -> Record | None:
    """Return the record in a line, its numbers finite and of a size that all readers take; None where there is none, or
    its time is none: the log may be another machine's."""
    odd = _ODD.search(line if isinstance(line, bytes) else line.encode(errors="replace"))
    record = _record(line, _careful if odd else json.loads)
    ts = None if record is None else record.get("ts")
    return record if isinstance(ts, int | float) and not isinstance(ts, bool) and 0 <= ts <= MAX_TS else None


def _record(line: str | bytes, decode: Callable[[str | bytes], Any]) -> Record | None:
    try:
        value = decode(line)
    except (ValueError, RecursionError):  # arrays nested a thousand deep are a liar's
        return None
    return value if isinstance(value, dict) and isinstance(value.get("event"), str) else None


def _careful(line: str | bytes) -> Any:
    return _CAREFUL.decode(line if isinstance(line, str) else line.decode())


def _whole(text: str) -> int | None:
    return int(text) if len(text) <= MAX_DIGITS else None


def _broken(text: str) -> float | None:
    value = float(text)
    return value if abs(value) < MAX_NUMBER else None  # nor is NaN below it


def _constant(text: str) -> Any:
    return None


_ODD: Final = re.compile(rb"(?<![\d.])\d{16}|[eE]\+?\d{3}|NaN|Infinity")
"""What lines with numbers have that are too large: only these are decoded number by number, which takes twice as
long."""

_CAREFUL: Final = json.JSONDecoder(parse_int=_whole, parse_float=_broken, parse_constant=_constant)


def older(path: Path) -> Path:
    """Return where a full log is kept: `events.1.jsonl` for `events.jsonl`."""
    return path.with_name(f"{path.stem}.1{path.suffix}")


def read_events(path: Path) -> Iterator[Event]:
    """Yield every event in a log, the older file's first. Lines without an event and missing files are skipped."""
    yield from (event for line in _lines(path) if (event := event_in(line)) is not None)


def read_records(path: Path) -> Iterator[Record]:
    """Yield every record in a log, the older file's first, those of other releases included."""
    yield from (record for line in _lines(path) if (record := from_line(line)) is not None)


def _lines(path: Path) -> Iterator[bytes]:
    for file in (older(path), path):
        with suppress(FileNotFoundError), file.open("rb") as lines:
            yield from lines


def _keep_newest(path: Path, most: int) -> None:
    """Shorten a log, if there is one, to the newest lines of at most so many bytes."""
    with suppress(FileNotFoundError), path.open("rb") as log:
        if log.seek(0, os.SEEK_END) <= most:
            return
        log.seek(-most - 1, os.SEEK_END)
        log.readline()  # the end of one that does not fit, or of the one before
        shorter = path.with_suffix(".shorter")
        try:
            with shorter.open("wb") as kept:
                shutil.copyfileobj(log, kept)
            shorter.replace(path)
        except BaseException:  # a full disk: what it did take is to be free again
            with suppress(OSError):
                shorter.unlink(missing_ok=True)
            raise


def _ends_whole(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"


def _finite(value: object) -> object:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return value


@contextmanager
def opened(node_dir: Path, settle: Callable[[], None] | None, secrets: Iterable[bytes | None]) -> Iterator[EventLog]:
    """Lock a node's folder, have `settle` make it a member's, and open its log, which hides `secrets`. Raises
    P2PTrainError."""
    with folders.locked(node_dir):
        folders.check_may_save(node_dir)
        if settle is not None:
            settle()
        with EventLog(node_dir / folders.EVENTS) as log:
            log.redact.learn(*secrets)
            yield log
