"""Small secret files: written whole or not at all with mode 0600, read within a bound.

The caller names the secret (`what`, as "the identity file"), so that an error names it.
"""

import os
import stat
from pathlib import Path
from typing import Final

from gossip.core.atomic_file import PRIVATE, write_atomic
from gossip.core.errors import LocalError

_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO
_HAS_MODES: Final = os.name == "posix"
"""Elsewhere a file's mode does not say who may read it."""


class UnreadableError(LocalError):
    """The file is there or not, and cannot be read: what it holds is not known to be bad."""


def write_private(path: Path, data: bytes, what: str) -> None:
    """Write a file that its owner alone may read, whole or not at all, and create its folder if needed. Raises
    LocalError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, data, mode=PRIVATE)
    except OSError as error:
        raise LocalError(f"cannot write {what} {path}: {error.strerror}") from error


def read_private(path: Path, most: int, what: str, *, refuse_shared: bool) -> bytes:
    """Read at most `most + 1` bytes of the file, so that a file that is too long shows. Raises LocalError, which is
    UnreadableError where the file cannot be read.

    `refuse_shared`: refuse a file that its group or everybody may open, since its content is not secret any more.
    """
    try:
        with path.open("rb") as file:
            shared = _HAS_MODES and bool(os.fstat(file.fileno()).st_mode & _OTHERS)
            data = file.read(most + 1)
    except OSError as error:
        raise UnreadableError(f"cannot read {what} {path}: {error.strerror}") from error
    if shared and refuse_shared:
        raise LocalError(f"{what} {path} can be opened by others than its owner: chmod 600 {path}")
    return data
