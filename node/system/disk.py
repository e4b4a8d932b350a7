"""The disk of a folder: how much room it has, and whether it is one at all."""

import os
import shutil
from pathlib import Path
from typing import Final

MOUNTS: Final = Path("/proc/self/mountinfo")

OF_MEMORY: Final = frozenset({"tmpfs", "ramfs"})
"""File systems whose files lie in main memory."""


def disk_free(folder: Path) -> int:
    """Return the bytes that this user may still write on the disk of `folder`, or of the nearest existing folder above
    it; -1 where that is not known. One system call, of microseconds on a local disk. One that hangs would delay the log
    too."""
    try:
        return shutil.disk_usage(_existing(folder)).free
    except OSError:
        return -1


def lies_in_memory(folder: Path) -> bool:
    """Return whether files in `folder`, or in the nearest existing folder above it, take main memory; False where the
    system does not tell."""
    try:
        device = _existing(folder.absolute()).stat().st_dev
        lines = MOUNTS.read_text().splitlines()
    except OSError:
        return False
    number = f"{os.major(device)}:{os.minor(device)}"
    parts = [line.partition(" - ") for line in lines]
    return any(before.split()[2:3] == [number] and after.split()[0] in OF_MEMORY for before, _, after in parts if after)


def _existing(folder: Path) -> Path:
    return next((each for each in (folder, *folder.parents) if each.exists()), folder)
