"""SIGTERM at the start of a process. The system takes it from process 1 of a container, unless there is a handler."""

import signal
import subprocess
import sys

import pytest

STARTS = """
import os, signal, sys
from node.system import interrupts
own = os.getpid()
if sys.argv[1] == "1":
    os.getpid = lambda: 1
interrupts.at_once()
interrupts.raising()
os.kill(own, signal.SIGTERM)
"""


@pytest.mark.parametrize(("number", "code"), [("1", 128 + signal.SIGTERM), ("any", -signal.SIGTERM)])
def test_sigterm_ends_a_start_at_once_also_that_of_process_1(number: str, code: int) -> None:
    """It is the handler's own exit code that shows it: as another process, SIGTERM needs none."""
    assert subprocess.run([sys.executable, "-c", STARTS, number]).returncode == code
