"""Chain epochs: an identity never uses one twice, whatever happened to its disk and its clock.

Two links with the same epoch and number are a proof of equivocation, and neighbours ban the key for it. So a new epoch
is above every record of an old one: the file `epoch`, the newest checkpoint, and the clock in milliseconds. The file is
synced before its epoch is used. A file may be damaged, or lack its line end (older releases wrote none, and it might be
cut short). Then the time at which it was written counts too, for an epoch is at least the clock at that time.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

from gossip.core.limits import MAX_COUNTER
from node.system.run_dir import write_atomic

MAX_EPOCH: Final = MAX_COUNTER - 1
"""The largest epoch that is believed: others can still read the one after it."""

_READ_BYTES: Final = 64
"""Four times the length of the largest epoch."""

_WHOLE: Final = re.compile(rb"[0-9]{1,16}\n")
_NUMBER: Final = re.compile(rb"[0-9]{1,16}")


class EpochCounter:
    """Gives this identity's epochs. `unix_time` returns seconds. `warn` is called when the file is damaged."""

    def __init__(self, path: Path, *, unix_time: Callable[[], float], warn: Callable[[str], None]) -> None:
        self._path = path
        self._unix_time = unix_time
        self._warn = warn
        self._used = 0

    @property
    def used(self) -> int:
        """Return the highest epoch known to have been used, for a checkpoint; 0 when none was."""
        return self._used

    def note(self, epoch: int) -> None:
        """Never give `epoch` or a lower one again: a checkpoint says that it was used."""
        self._used = max(self._used, epoch)

    def advance(self) -> int:
        """Return an epoch that was never used, already durable on disk. Raises RunError when the disk does not take
        it."""
        self.note(self._on_disk())
        epoch = max(self._used + 1, int(self._unix_time() * 1000))
        write_atomic(self._path, f"{epoch}\n".encode("ascii"))
        self.note(epoch)
        return epoch

    def _on_disk(self) -> int:
        """Return the highest used epoch by the file, or else by its time; 0 where there is no file."""
        try:
            with self._path.open("rb") as file:
                data = file.read(_READ_BYTES)
        except FileNotFoundError:
            return 0
        except OSError:
            data = b""
        if _WHOLE.fullmatch(data) and int(data) <= MAX_EPOCH:
            return int(data)
        written = self._written_at()
        if _NUMBER.fullmatch(data) and int(data) <= MAX_EPOCH:
            return max(int(data), written)
        self._warn(
            f"{self._path} is damaged: going on above the newest checkpoint's epoch, the clock, and the time at which "
            "the file was written"
        )
        return written

    def _written_at(self) -> int:
        """Return when the file was written, in Unix ms; 0 where that is not known."""
        try:
            return max(0, min(self._path.stat().st_mtime_ns // 1_000_000 + 1, MAX_EPOCH))
        except OSError:
            return 0
