"""`p2ptrain top` on a terminal of its own: it draws, q and Ctrl-C leave, and the terminal is as it was."""

import os
import pty
import select
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest
from processes_harness import P2PTRAIN, PATIENCE_S
from typed_events import said

from node.events.log import EventLog
from node.system.run_dir import EVENTS

SECOND_SCREEN, FIRST_SCREEN = b"\x1b[?1049h", b"\x1b[?1049l"


def read_until(terminal: int, wanted: bytes) -> bytes:
    seen, deadline = b"", time.monotonic() + PATIENCE_S
    while wanted not in seen:
        assert time.monotonic() < deadline, seen
        if select.select([terminal], [], [], 0.2)[0]:
            seen += os.read(terminal, 1 << 16)
    return seen


@pytest.mark.parametrize(("key", "code"), [(b"q", 0), (b"xyQ", 0), (b"\x03", 130)], ids=["q", "others", "ctrl-c"])
def test_it_is_left_with_a_key(tmp_path: Path, key: bytes, code: int) -> None:
    (tmp_path / "node-0").mkdir()
    with EventLog(tmp_path / "node-0" / EVENTS) as log:
        log(said("round", round=3, rounds=9, train_loss=1.5))
    ours, theirs = pty.openpty()
    before = termios.tcgetattr(theirs)
    process = subprocess.Popen(
        [sys.executable, *P2PTRAIN, "top", str(tmp_path), "--every", "0.1"],
        **dict.fromkeys(("stdin", "stdout", "stderr"), theirs),
        start_new_session=True,
        preexec_fn=_own_terminal,
        env=os.environ | {"TERM": "xterm-256color", "COLUMNS": "80", "LINES": "24"},
    )
    try:
        assert SECOND_SCREEN in read_until(ours, b"3/9")
        os.write(ours, key)
        read_until(ours, FIRST_SCREEN)
        assert process.wait(PATIENCE_S) == code
        assert termios.tcgetattr(theirs) == before
    finally:
        process.kill()
        process.wait(PATIENCE_S)
        os.close(ours)
        os.close(theirs)


def _own_terminal() -> None:
    """As a shell starts it: Ctrl-C at the terminal is a signal to this process, which heeds it."""
    import fcntl
    import signal

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
