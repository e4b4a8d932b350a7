"""The record of what has crossed between regions: one JSON object a line in `crossings.jsonl` of the node's folder.

It only grows: no line is changed, and the file is never replaced. A line is on its way to the disk before the bytes are
on their way to another region. Its writer says when that failed, and then nothing is sent. A line of which a power
failure has left a part stays as it is, and the next one begins after it.
"""

import os
import time
from collections.abc import Callable
from io import FileIO
from pathlib import Path

from gossip.core.api import Crossing
from node.events.log import to_line


class CrossingLog:
    """Call it with a crossing; it returns whether that was recorded. The file is made with the first one. `clock`: Unix
    seconds."""

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.time) -> None:
        self._path = path
        self._clock = clock

    def __call__(self, crossing: Crossing) -> bool:
        """Append a line: its time in Unix seconds, digests in hex, sizes in bytes."""
        line = {
            "ts": round(self._clock(), 3),
            "direction": crossing.direction,
            "peer": str(crossing.peer),
            "from": crossing.from_region,
            "to": crossing.to_region,
            "model_of": crossing.model_of,
            "round": crossing.round,
            "averaged": crossing.averaged,
            "digest": crossing.address.hex(),
            "bytes": crossing.size,
        }
        data = to_line(line).encode()
        try:
            with self._path.open("ab+", buffering=0) as file:
                start = file.seek(0, os.SEEK_END)
                if _written(file, data if _ends_whole(file, start) else b"\n" + data):
                    return True
                file.truncate(start)  # the rest of a line that was cut would spoil the next one
        except OSError:
            return False
        return False


def _ends_whole(file: FileIO, size: int) -> bool:
    """Whether the last line has an end."""
    if not size:
        return True
    file.seek(size - 1)
    return file.read(1) == b"\n"


def _written(file: FileIO, data: bytes) -> bool:
    try:
        return file.write(data) == len(data)
    except OSError:
        return False
