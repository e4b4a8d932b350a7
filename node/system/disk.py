"""Room on the disk of a folder."""

import shutil
from pathlib import Path


def disk_free(folder: Path) -> int:
    """Return the bytes that this user may still write on the disk of `folder`, or of the nearest existing folder above
    it; -1 where that is not known. One system call, of microseconds on a local disk. One that hangs would delay the log
    too."""
    there = next((each for each in (folder, *folder.parents) if each.exists()), folder)
    try:
        return shutil.disk_usage(there).free
    except OSError:
        return -1
