"""How a script ends by Ctrl-C and by mistakes: in one line, as the commands of `p2ptrain` do."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from node.system.errors import EXIT_FAILED, EXIT_INTERRUPTED, P2PTrainError, is_interrupt


@contextmanager
def ended_in_a_line() -> Iterator[None]:
    """Where Ctrl-C, an error of ours, a file or a process that was started ends the block, end the process with one
    line, and its exit code. What else is raised passes. Imports before the block are not covered."""
    try:
        yield
    except BaseException as error:
        found = _said(error)
        if found is None:
            raise
        code, words = found
        print(f"{Path(sys.argv[0]).name}: {words}", file=sys.stderr)
        raise SystemExit(code) from None


def _said(error: BaseException) -> tuple[int, str] | None:
    if is_interrupt(error):
        return EXIT_INTERRUPTED, "interrupted"
    if isinstance(error, P2PTrainError):
        return error.exit_code, error.line()
    if isinstance(error, OSError):
        return EXIT_FAILED, str(error)
    if isinstance(error, subprocess.CalledProcessError):
        return EXIT_FAILED, f"a process that it started ended with code {error.returncode}; see what that printed"
    return None
