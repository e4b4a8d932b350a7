"""Which code this is: the installed version, and the commit where it runs from a checkout."""

import subprocess
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed
from pathlib import Path
from typing import Final

NOT_INSTALLED: Final = "(not installed)"
GIT_S: Final = 5.0
"""Seconds that git may take: a slow network disk should not hold up what only wants to name a commit."""


def version() -> str:
    """Return the version of the installed package; NOT_INSTALLED in a plain checkout."""
    try:
        return installed("p2ptrain")
    except PackageNotFoundError:
        return NOT_INSTALLED


def commit() -> str | None:
    """Return the checkout's commit, with `+` where tracked files differ from it; None outside of one, or without
    git."""
    folder = Path(__file__).parents[2]
    if not (folder / ".git").exists():  # an installed package that lies in somebody else's checkout
        return None
    try:
        found = _git(folder, "rev-parse", "HEAD")
        return f"{found[:12]}{'+' if _git(folder, 'status', '--porcelain', '--untracked-files=no') else ''}"
    except (OSError, subprocess.SubprocessError):
        return None


def _git(folder: Path, *words: str) -> str:
    done = subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, timeout=GIT_S, check=True)
    return done.stdout.strip()
