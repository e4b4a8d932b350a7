"""Room on the disk of a folder."""

import shutil
from pathlib import Path


def disk_free(folder: Path) -> int:
    """Bytes that this user may still write on the disk of `folder`, or of the nearest folder above it that is there; -1
    where nobody can say. One system call, of microseconds on a local disk. One that hangs would hold up the log too."""
    there = next((each for each in (folder, *folder.parents) if each.exists()), folder)
    try:
        return shutil.disk_usage(there).free
    except OSError:
        return -1
