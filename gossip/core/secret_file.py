"""Small secret files: written whole or not at all with mode 0600, read within a bound.

Who keeps a secret in one says what it is (`what`, as "the identity file"), so that an error names it.
"""

import os
import stat
from pathlib import Path
from typing import Final

from gossip.core.atomic_file import PRIVATE, write_atomic
from gossip.core.errors import LocalError

_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO
_HAS_MODES: Final = os.name == "posix"
"""Elsewhere a file's mode says nothing of who may read it."""


def write_private(path: Path, data: bytes, what: str) -> None:
    """Write a file of its owner's alone, whole or not at all, and make its folder where there is none. Raises
    LocalError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, data, mode=PRIVATE)
    except OSError as error:
        raise LocalError(f"cannot write {what} {path}: {error.strerror}") from error


def read_private(path: Path, most: int, what: str, *, refuse_shared: bool) -> bytes:
    """At most `most + 1` bytes of the file, so that one which is too long shows. Raises LocalError.

    `refuse_shared`: a file that its group or the world may open is refused, as what it holds is no secret any more.
    """
    try:
        with path.open("rb") as file:
            shared = _HAS_MODES and bool(os.fstat(file.fileno()).st_mode & _OTHERS)
            data = file.read(most + 1)
    except OSError as error:
        raise LocalError(f"cannot read {what} {path}: {error.strerror}") from error
    if shared and refuse_shared:
        raise LocalError(f"{what} {path} can be opened by others than its owner: chmod 600 {path}")
    return data
