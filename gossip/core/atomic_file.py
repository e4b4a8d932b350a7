"""Files that are replaced whole: after a crash, a full disk or a power cut the old bytes or the new ones are there.

The bytes go into a new file of the same folder, which is synced and renamed over the old one; then the folder is
synced. Without the first sync a rename may reach the disk before the bytes do. Without the second it may never reach
it, although other peers have already acted on the new content. Every small file of the project is written here.
"""

import errno
import os
import secrets
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

PRIVATE: Final = 0o600
"""The mode for secrets: their owner alone may read them."""

ORDINARY: Final = 0o666
"""The mode that `open` gives, less the process's umask."""

_NO_SYNC_OF_FOLDERS: Final = frozenset({errno.EINVAL, errno.ENOTSUP})
"""Errors of file systems that cannot sync a folder (some network and FUSE ones). Nothing more can be done there."""


def write_atomic(path: Path, data: bytes, *, mode: int = ORDINARY) -> None:
    """Replace `path` by a file that holds `data`; its folder must exist. `mode`: permissions, less the umask.

    Raises OSError. Then the old file is still there or, where only the folder could not be synced, the new one. What is
    there and is no file is never replaced.
    """
    write_pieces_atomic(path, [data], mode=mode)


def write_pieces_atomic(path: Path, pieces: Iterable[bytes | memoryview], *, mode: int = ORDINARY) -> None:
    """Do so with `pieces` of what the file holds, one after another."""
    _check_replaceable(path)
    beside = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        _write_synced(beside, pieces, mode)
        rename_durably(beside, path)
    except BaseException:
        with suppress(OSError):
            beside.unlink(missing_ok=True)
        raise


def _check_replaceable(path: Path) -> None:
    """Raise FileExistsError for a device, a pipe, a socket or a name for one, such as /dev/stdout. Nothing else would
    stop root from putting a file in the place of /dev/null, for all programs of the machine. Raise IsADirectoryError
    for a folder that has no name to write beside, as `.` and `/`."""
    if not path.name:
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    # /dev/stdout leads through /proc to what it is at the time, which may be a file.
    through_proc = path.is_symlink() and path.readlink().is_relative_to("/proc")
    if through_proc or (path.exists() and not path.is_file() and not path.is_dir()):
        raise FileExistsError(errno.EEXIST, "it is a device or a pipe, and is not replaced", str(path))


def rename_durably(source: Path, target: Path) -> None:
    """Rename within a folder, over a file that may exist, and sync the folder. The content of `source` must be synced
    already. Raises OSError."""
    source.replace(target)
    sync_folder(target.parent)


def sync_folder(folder: Path) -> None:
    """Make durable what was created, renamed and removed in a folder. Raises OSError."""
    if os.name != "posix":
        return  # Windows opens no folders, and keeps their entries in a journal
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_SYNC_OF_FOLDERS:
            raise
    finally:
        os.close(descriptor)


def sync_file(path: Path) -> None:
    """Make durable what another writer wrote into a file. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_synced(path: Path, pieces: Iterable[bytes | memoryview], mode: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with os.fdopen(descriptor, "wb") as file:
        for piece in pieces:
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())
