"""The files that `p2ptrain plan` writes: each replaced whole, and never one that the plan is made of."""

import errno
from collections.abc import Sequence
from pathlib import Path

from gossip.core.atomic_file import write_atomic
from node.system.errors import UsageError


def check_apart(write: Path | None, scenario: Path | None, read: Sequence[Path]) -> None:
    """Raise UsageError where both outputs are one file, or one of them is among the files that are `read`: what is
    written would take the place of it."""
    if write is not None and scenario is not None and _is_same(write, scenario):
        raise UsageError(
            f"--write and --scenario: both would be written to {write}", "give each of them a file of its own"
        )
    for option, path in (("--write", write), ("--scenario", scenario)):
        if path is not None and any(_is_same(path, each) for each in read):
            raise UsageError(f"{option}: {path} is what the plan is made of", "give another file")


def write_file(path: Path, text: str) -> None:
    """Replace a file whole or not at all. UsageError where that cannot be: an old one is then still there."""
    try:
        write_atomic(path.absolute(), text.encode())  # "." has no name of its own
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        fix = (
            "free some disk space, or give a file on another disk" if full else "give a file in a folder that is there"
        )
        raise UsageError(f"{path} cannot be written: {error.strerror}", fix) from None


def _is_same(one: Path, other: Path) -> bool:
    try:
        return one.resolve() == other.resolve() or one.samefile(other)
    except OSError:  # one of them is not there
        return False
