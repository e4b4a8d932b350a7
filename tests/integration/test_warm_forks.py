"""A forked process is what a started one is, to itself and to those who look at it."""

import os
import signal
import sys
from pathlib import Path

import psutil
import pytest
import told_of_itself
from processes_harness import Program

pytestmark = [
    pytest.mark.paired,
    pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux alone"),
]

SCRIPT = [Path(told_of_itself.__file__)]


def test_it_is_started_with_the_same_and_draws_something_else(tmp_path: Path) -> None:
    told = []
    for real in (True, False, False):
        with Program(tmp_path, "a word", run=SCRIPT, real=real) as program:
            assert program.end() == 7, program.stderr
            (event,) = program.heard("told")
            told.append(event)
    drawn = [event.pop("drawn") for event in told]
    files = [event.pop("files") for event in told]
    assert len(set(drawn)) == 3
    assert max(files[1:]) <= files[0] + 2, "no end of a pipe is left open"
    assert told[0] == told[1] == told[2]
    assert told[0]["parent"] == os.getpid()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_signal_ends_it_and_its_parent_hears_by_which(tmp_path: Path, number: signal.Signals) -> None:
    with Program(tmp_path, "wait", run=SCRIPT) as program:
        program.hear("told")
        assert psutil.Process(program.pid).ppid() == os.getpid()
        program.interrupt(number)
        assert program.end() == -number
        assert not psutil.pid_exists(program.pid)
