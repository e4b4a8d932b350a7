"""A file without a name, for what is too large for memory: gone when nobody holds it any more, also after a crash."""

import os
import weakref
from pathlib import Path
from tempfile import mkstemp

Buffer = bytes | bytearray | memoryview


class NamelessFile:
    """Bytes in a new file of `folder` that no other program sees, written and read at any place. Raises OSError."""

    def __init__(self, folder: Path) -> None:
        self._descriptor, name = mkstemp(dir=folder)
        weakref.finalize(self, os.close, self._descriptor)
        Path(name).unlink()
        self._size = 0

    def append(self, data: Buffer) -> None:
        """Write bytes behind those that are here. Raises OSError; then the size is as before."""
        self.write_at(self._size, data)

    def write_at(self, start: int, data: Buffer) -> None:
        """Write bytes at this place, which may be beyond the end. Raises OSError; then the size is as before."""
        view, at = memoryview(data).cast("B"), start
        while view:
            done = os.pwrite(self._descriptor, view, at)
            view, at = view[done:], at + done
        self._size = max(self._size, at)

    def __len__(self) -> int:
        """Return how many bytes there are."""
        return self._size

    def __getitem__(self, part: slice, /) -> bytes:
        """Return the bytes of a slice with explicit start and stop, or as many as there are."""
        start, stop = part.start, min(part.stop, self._size)
        pieces = []
        while start < stop:
            piece = os.pread(self._descriptor, stop - start, start)
            if not piece:
                raise OSError(f"a nameless file ends at {start} bytes, before {stop}")
            pieces.append(piece)
            start += len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)
