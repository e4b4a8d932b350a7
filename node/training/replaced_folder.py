"""A folder that takes the place of another. No system renames over a folder that has files: the one before is set aside
first, under a name by which it is found again after a kill between the two renames. Without torch: an export looks for
it before anything is loaded.
"""

import glob
import shutil
from pathlib import Path
from typing import Final

from gossip.core.atomic_file import rename_durably

BEFORE: Final = ".before"
"""The end of the name of a folder that was set aside."""


def put_folder(made: Path, out: Path) -> None:
    """Put a folder in its place. One that is there is removed last, and put back where that fails. `made` lies beside
    `out`, and is called `.NAME.` and something. Raises OSError."""
    before = made.with_name(f"{made.name}{BEFORE}")
    if out.exists():
        out.replace(before)
    try:
        rename_durably(made, out)
    except BaseException:  # an interrupt, too
        if before.exists() and not out.exists():
            before.replace(out)
        raise
    shutil.rmtree(before, ignore_errors=True)


def put_back(out: Path) -> bool:
    """Put the folder back that `put_folder` has set aside, and was killed before it put its own in the place. Return
    whether there was one. Raises OSError."""
    found = sorted(out.absolute().parent.glob(f".{glob.escape(out.name)}.*{BEFORE}"))
    if out.exists() or not found:
        return False
    found[0].rename(out)
    return True
