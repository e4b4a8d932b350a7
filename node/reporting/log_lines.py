"""Lines of a node's log, which may be another machine's, cut short, or no log at all: what is no event is counted.

Lines are read one at a time, and no longer than MAX_LINE: memory is bounded whatever the file holds.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from node.events.event_types import Event, parse
from node.events.log import older, record_in
from node.system.errors import RunError
from node.system.text import plural

MAX_LINE: Final = 1 << 20
"""Longest line that is read: a round among 64 neighbours has some 8 kB."""


@dataclass
class LineCounts:
    """What the lines of a log were."""

    lines: int = 0
    events: int = 0
    strange: int = 0
    """Lines that are no events: no JSON, or without a name and a time."""
    unknown: int = 0
    """Events whose name this release does not know, as those of a newer one, or that lack what they need."""
    long: int = 0
    """Lines longer than MAX_LINE."""
    cut: bool = False
    """Whether the last line was cut short."""

    def notes(self, name: str) -> list[str]:
        """Return what a reader should know of the log, in sentences."""
        said = []
        if self.strange:
            said.append(
                f"{name}: {plural(self.strange, 'line')} {'is no event' if self.strange == 1 else 'are no events'}"
            )
        if self.long:
            said.append(f"{name}: {plural(self.long, 'line')} {_were(self.long)} longer than {MAX_LINE >> 20} MiB")
        if self.unknown:
            said.append(
                f"{name}: {plural(self.unknown, 'event')} {_were(self.unknown)} unknown to this release, or incomplete"
            )
        if self.cut:
            said.append(f"{name}: its last line was cut short")
        return said


def _were(count: int) -> str:
    return "was" if count == 1 else "were"


def events_of(log: Path, counts: LineCounts) -> Iterator[Event]:
    """Yield the events of a log, the older file's first, and count every line. RunError when it cannot be read."""
    for path in (older(log), log):
        if not path.exists() and path != log:
            continue
        try:
            with path.open("rb") as file:
                yield from _events_in(file, counts)
        except OSError as error:
            raise RunError(f"cannot read {path}: {error.strerror}", "leave it out, or make it readable") from error


def _events_in(file: IO[bytes], counts: LineCounts) -> Iterator[Event]:
    while line := file.readline(MAX_LINE):
        ends = line.endswith(b"\n")
        if not ends and len(line) == MAX_LINE:
            counts.lines += 1
            counts.long += 1
            while (rest := file.readline(MAX_LINE)) and not rest.endswith(b"\n"):
                pass
            continue
        if not line.strip():
            continue
        counts.lines += 1
        record = record_in(line)
        event = None if record is None else parse(record)
        if event is not None:
            counts.events += 1
            yield event
        elif not ends:
            counts.cut = True
        elif record is None:
            counts.strange += 1
        else:
            counts.unknown += 1
