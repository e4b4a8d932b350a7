"""A file without a name, for what is too large for memory: gone when nobody holds it any more, also after a crash."""

import errno
import mmap
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

    def reserve(self, size: int) -> None:
        """Make the file so large, and reserve the room where the system can. Raises OSError where there is too
        little."""
        if size > self._size:
            if not self._reserved(size):
                os.ftruncate(self._descriptor, size)
            self._size = size

    def _reserved(self, size: int) -> bool:
        """Reserve so many bytes. False where the system or its file system knows no such call (ZFS under musl)."""
        if not hasattr(os, "posix_fallocate"):
            return False
        try:
            os.posix_fallocate(self._descriptor, 0, size)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                raise
            return False
        return True

    def read_into(self, start: int, out: memoryview) -> None:
        """Fill `out` with the bytes from this place on. Raises OSError, also where there are fewer."""
        at = 0
        while at < len(out):
            done = os.preadv(self._descriptor, [out[at:]], start + at)
            if not done:
                raise OSError(errno.EIO, f"a nameless file ends at {start + at} bytes, before {start + len(out)}")
            at += done

    def mapped(self) -> mmap.mmap:
        """Return all bytes as they are now, mapped: not to be written to, and in memory as far as they are read."""
        return mmap.mmap(self._descriptor, self._size)

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
